// Floats in AVX-512 registers: 16 numbers (kernels/simd.h says what each function does).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kLanes = 16;
struct Floats { __m512 v; };
struct Mask { __mmask16 m; };

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline Floats load_first(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
inline void store_first(float* p, Floats a, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
inline Floats load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Floats splat(float a) { return {_mm512_set1_ps(a)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats square_root(Floats a) { return {_mm512_sqrt_ps(a.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats round_even(Floats a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats magnitude(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats negate(Floats a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
inline Floats with_sign_of(Floats a, Floats sign) {
  return {_mm512_or_ps(a.v, _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
inline Mask less(Floats a, Floats b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Floats select(Mask mask, Floats yes, Floats no) {
  return {_mm512_mask_blend_ps(mask.m, no.v, yes.v)};
}
inline Floats power_of_two(Floats n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

template <int Which>
inline Floats load_bf16(const uint8_t* p) {
  const __m512i both = _mm512_loadu_si512(p);
  return {_mm512_castsi512_ps(Which ? _mm512_and_si512(both, _mm512_set1_epi32(-65536))
                                    : _mm512_slli_epi32(both, 16))};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
