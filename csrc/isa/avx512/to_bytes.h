// 32 floats as bytes, and their largest magnitude, in AVX-512 registers (kernels/quantize.inl).
#pragma once

#include <immintrin.h>

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline uint32_t largest_magnitude(const float* x) {
  const __m512i a = _mm512_castps_si512(magnitude(load(x)).v);
  const __m512i b = _mm512_castps_si512(magnitude(load(x + kLanes)).v);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}

inline __m256i to_bytes(const Floats (&a)[2]) {
  const __m128i first = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a[0].v));
  const __m128i second = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a[1].v));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
