// Floats in AVX2 registers: 8 numbers (kernels/simd.h says what each function does).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kLanes = 8;
struct Floats { __m256 v; };
struct Mask { __m256 m; };

inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm256_storeu_ps(p, a.v); }
inline Floats load_first(const float* p, int n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
inline void store_first(float* p, Floats a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }
inline Floats load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Floats splat(float a) { return {_mm256_set1_ps(a)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats square_root(Floats a) { return {_mm256_sqrt_ps(a.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Floats round_even(Floats a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats magnitude(Floats a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Floats negate(Floats a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
inline Floats with_sign_of(Floats a, Floats sign) {
  return {_mm256_or_ps(a.v, _mm256_and_ps(sign.v, _mm256_set1_ps(-0.0f)))};
}
inline Mask less(Floats a, Floats b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline Floats select(Mask mask, Floats yes, Floats no) {
  return {_mm256_blendv_ps(no.v, yes.v, mask.m)};
}
inline Floats power_of_two(Floats n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}

template <int Which>
inline Floats load_bf16(const uint8_t* p) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  // Shifted out rather than masked: all 16 registers are in use, none is left for a mask.
  const __m256i low = Which ? _mm256_srli_epi32(both, 16) : both;
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16))};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
