// Products with bf16 weights by `vdpbf16ps`, which takes pairs of inputs.
#pragma once

#include <immintrin.h>

#include "kernels/gemm_steps.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr const char* kBf16Order = "pairs";
constexpr int kBf16Bytes = 2;  // of an input in a prepared row for BF16
constexpr int kBf16Operations = 4;  // of `add_bf16`, a lane: two products and two sums

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

// Rounds an fp32 row to bf16. `out` is filled with zeros.
void prepare_bf16_row(const float* x, int inputs, uint8_t* out) {
  int i = 0;
  for (; i + 16 <= inputs; i += 16) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * 2),
                        reinterpret_cast<__m256i>(rounded));
  }
  for (; i < inputs; ++i) {
    const uint16_t rounded = float_to_bf16(x[i]);
    __builtin_memcpy(out + i * 2, &rounded, sizeof rounded);
  }
}

// Adds a product of `factors`, for peak_rates.inl.
inline Floats add_bf16(Floats sum, const uint8_t* factors) {
  const __m512bh pairs = reinterpret_cast<__m512bh>(_mm512_loadu_si512(factors));
  return {_mm512_dpbf16_ps(sum.v, pairs, pairs)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
