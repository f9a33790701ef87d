// Floats: as many fp32 numbers as the tier's registers hold (16, 8 or 1), and what kernels do
// with them. Every function gives the same bits in every tier: IEEE operations only, a
// multiplication and an addition are one (`fma`) where the source says so and nowhere else.
//
// Like all kernel files this is compiled once per tier: OCTAVO_TIER names the namespace. No
// function from the C++ library is used, as an inline one compiled here could be linked elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/numbers.h"
#include "kernels/table.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

#if defined(__AVX512F__)

constexpr int kLanes = 16;
struct Floats { __m512 v; };
struct Mask { __mmask16 m; };

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
// The first n lanes, 0 ≤ n ≤ kLanes; the others are zero, and memory behind them is not touched.
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
// Of two numbers the second if either is NaN: max(limit, x) and min(limit, x) keep a NaN in x.
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats round_even(Floats a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats magnitude(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats negate(Floats a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
inline Floats with_sign_of(Floats a, Floats sign) {  // a ≥ 0
  return {_mm512_or_ps(a.v, _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
inline Mask less(Floats a, Floats b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Floats select(Mask mask, Floats yes, Floats no) {
  return {_mm512_mask_blend_ps(mask.m, no.v, yes.v)};
}
// 2^n for whole n in [-126, 127].
inline Floats power_of_two(Floats n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

#elif defined(__AVX2__)

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

#else

constexpr int kLanes = 1;
struct Floats { float v; };
struct Mask { bool m; };

inline Floats load(const float* p) { return {*p}; }
inline void store(float* p, Floats a) { *p = a.v; }
inline Floats load_first(const float* p, int n) { return {n > 0 ? *p : 0.0f}; }
inline void store_first(float* p, Floats a, int n) {
  if (n > 0) *p = a.v;
}
inline Floats load_half(const uint16_t* p) { return {half_to_float(*p)}; }
inline Floats splat(float a) { return {a}; }
inline Floats operator+(Floats a, Floats b) { return {a.v + b.v}; }
inline Floats operator-(Floats a, Floats b) { return {a.v - b.v}; }
inline Floats operator*(Floats a, Floats b) { return {a.v * b.v}; }
inline Floats operator/(Floats a, Floats b) { return {a.v / b.v}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
inline Floats square_root(Floats a) { return {__builtin_sqrtf(a.v)}; }
inline Floats max(Floats a, Floats b) { return {a.v > b.v ? a.v : b.v}; }
inline Floats min(Floats a, Floats b) { return {a.v < b.v ? a.v : b.v}; }
inline Floats round_even(Floats a) { return {__builtin_rintf(a.v)}; }
inline Floats magnitude(Floats a) { return {__builtin_fabsf(a.v)}; }
inline Floats negate(Floats a) { return {-a.v}; }
inline Floats with_sign_of(Floats a, Floats sign) { return {__builtin_copysignf(a.v, sign.v)}; }
inline Mask less(Floats a, Floats b) { return {a.v < b.v}; }
inline Floats select(Mask mask, Floats yes, Floats no) { return mask.m ? yes : no; }
inline Floats power_of_two(Floats n) {
  return {bits_to_float(static_cast<uint32_t>(static_cast<int32_t>(n.v) + 127) << 23)};
}

#endif

constexpr int kPanelVectors = kPanel / kLanes;

// Brings the line that holds p to L2 (not to L1, which what is in use now would have to leave).
// p may lie behind the end of a buffer: nothing is read.
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
// The same of what will be written.
inline void prefetch_to_write(const void* p) { __builtin_prefetch(p, 1, 2); }

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
