// Quantised activations in AVX2 and AVX-512 registers (kernels/quantize.inl).
#pragma once

#include <immintrin.h>

#include <to_bytes.h>

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline Halves store_codes(const Floats (&codes)[kGroup / kLanes], uint8_t* out) {
  const __m256i bytes = to_bytes(codes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1));
  return {_mm256_extract_epi32(sums, 0), _mm256_extract_epi32(sums, 4)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
