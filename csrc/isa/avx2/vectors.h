// Vectors in AVX2 registers (kernels/attention_vector.inl says what each function does).
#pragma once

#include <immintrin.h>

#include "kernels/vector_types.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Doubles fused(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
inline Floats larger(Floats x, Floats other) { return x > other ? x : other; }
inline uint32_t set_lanes(WordMask mask) {
  return static_cast<uint32_t>(_mm256_movemask_pd((__m256d)mask));
}

template <bool kHalf>
inline Floats read_floats(const float* from) {
  return load<Floats>(from);
}
template <bool kHalf>
inline Ints read_words(const uint16_t* from) {
  return load<Ints>(from);
}
template <bool kHalf>
inline Ints read_code_pairs(const int8_t* from) {
  return reinterpret_cast<Ints>(
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
template <bool kHalf>
inline Ints read_bytes(const uint8_t* from) {
  return reinterpret_cast<Ints>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
