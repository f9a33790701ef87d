// 32 floats as bytes, and their largest magnitude, in AVX2 registers (kernels/quantize.inl).
#pragma once

#include <immintrin.h>

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline uint32_t largest_magnitude(const float* x) {
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < kGroup; i += kLanes) {
    most = _mm256_max_epu32(most, _mm256_castps_si256(magnitude(load(x + i)).v));
  }
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

inline __m256i to_bytes(const Floats (&a)[4]) {
  const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(a[0].v), _mm256_cvtps_epi32(a[1].v));
  const __m256i second = _mm256_packs_epi32(_mm256_cvtps_epi32(a[2].v), _mm256_cvtps_epi32(a[3].v));
  // Packing goes by halves of registers: put the parts of four bytes into order again.
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
