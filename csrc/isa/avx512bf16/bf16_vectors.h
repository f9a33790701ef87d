// Vectors of AVX-512 with bf16 numbers: rows rounded to them, and pairs of them multiplied.
#pragma once

#include <immintrin.h>

#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kBf16Bytes = 2;  // of an input in a prepared row for BF16
constexpr int kBf16Operations = 4;  // of `add_bf16`, a lane: two products and two sums

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
