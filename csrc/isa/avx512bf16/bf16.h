// Products with bf16 weights by `vdpbf16ps`, which takes pairs of inputs.
#pragma once

#include <bf16_vectors.h>
#include <immintrin.h>

#include "kernels/gemm_steps.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr const char* kBf16Order = "pairs";

struct StepBF16 {
  static constexpr int kMostRows = kMaxRows;
  static constexpr int kInputs = 2;
  static constexpr int kWeightBytes = kPanel * 4;
  static constexpr int kInputBytes = 4;

  static __m512bh pair(const uint8_t* x) {
    int32_t bits;
    __builtin_memcpy(&bits, x, sizeof bits);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
  }

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    const __m512bh low = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel));
    const __m512bh high = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + 64));
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const __m512bh input = pair(x[r] + at);
      sums[r][0].v = _mm512_dpbf16_ps(sums[r][0].v, low, input);
      sums[r][1].v = _mm512_dpbf16_ps(sums[r][1].v, high, input);
    }
  }
};

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
