// Vectors in AVX-512 registers (kernels/attention_vector.inl says what each function does).
#pragma once

#include <immintrin.h>

#include "kernels/vector_types.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Doubles fused(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
inline Floats larger(Floats x, Floats other) { return _mm512_max_ps(x, other); }
inline uint32_t set_lanes(WordMask mask) { return _mm512_movepi64_mask((__m512i)mask); }

inline __m512i half_or_all(const void* from, bool half) {
  return half ? _mm512_maskz_loadu_epi32(0xFF, from) : _mm512_loadu_si512(from);
}
template <bool kHalf>
inline Floats read_floats(const float* from) {
  return _mm512_castsi512_ps(half_or_all(from, kHalf));
}
template <bool kHalf>
inline Ints read_words(const uint16_t* from) {
  return reinterpret_cast<Ints>(half_or_all(from, kHalf));
}
template <bool kHalf>
inline Ints read_code_pairs(const int8_t* from) {
  const __m256i codes =
      kHalf ? _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))
            : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return reinterpret_cast<Ints>(_mm512_cvtepi8_epi16(codes));
}
template <bool kHalf>
inline Ints read_bytes(const uint8_t* from) {
  const __m128i* bytes = reinterpret_cast<const __m128i*>(from);
  return reinterpret_cast<Ints>(
      _mm512_cvtepu8_epi32(kHalf ? _mm_loadl_epi64(bytes) : _mm_loadu_si128(bytes)));
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
