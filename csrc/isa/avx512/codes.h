// Codes of weights and their integer products (kernels/codes.inl says what each function does).
#pragma once

#include <immintrin.h>

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

struct Codes { __m512i v; };
struct Four { __m512i v; };
struct Integers { __m512i v; };
constexpr bool kTakesOffsetOff = false;
constexpr bool kDotsHighCodes = true;

inline Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Codes masked(Codes a, int mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(mask))}; }
template <int left>
OCTAVO_INLINE Codes shifted(Codes a) {
  if constexpr (left >= 0) return {_mm512_slli_epi32(a.v, left)};
  else return {_mm512_srli_epi32(a.v, -left)};
}
inline Codes with_bits(Codes a, Codes b, int mask) {
  return {_mm512_ternarylogic_epi32(a.v, b.v, _mm512_set1_epi8(mask), 0xF8)};
}
inline Codes look_up(const int8_t* table, Codes a) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), a.v)};
}
inline void store_codes(uint8_t* p, Codes a) { _mm512_storeu_si512(p, a.v); }
template <int half>
OCTAVO_INLINE Codes interleaved(Codes a, Codes b) {
  return {half ? _mm512_unpackhi_epi8(a.v, b.v) : _mm512_unpacklo_epi8(a.v, b.v)};
}
inline Codes chosen(Codes test, Codes a, Codes b) {
  return {_mm512_mask_blend_epi8(_mm512_test_epi8_mask(test.v, test.v), a.v, b.v)};
}
inline Four splat_four(const uint8_t* p) { return {_mm512_set1_epi32(read_four(p))}; }
inline Integers splat_integer(const uint8_t* p) { return {_mm512_set1_epi32(read_four(p))}; }
inline Integers no_integers() { return {_mm512_setzero_si512()}; }
template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  return {_mm512_dpbusd_epi32(sum.v, a.v, b.v)};
}
inline Integers add_sixteenth(Integers a, Integers b) {
  return {_mm512_add_epi32(a.v, _mm512_srai_epi32(b.v, 4))};
}
inline Floats to_floats(Integers a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Floats as_floats(Integers a) { return {_mm512_castsi512_ps(a.v)}; }
inline Integers widened(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Integers widened_signed(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Integers operator&(Integers a, int mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(mask))};
}
inline Integers with_bits(Integers a, Integers b, int mask) {
  return {_mm512_ternarylogic_epi32(a.v, b.v, _mm512_set1_epi32(mask), 0xF8)};
}
inline Integers operator<<(Integers a, int left) {
  return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(left))};
}
inline Integers operator>>(Integers a, int right) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(right))};
}
inline Floats powers_less_128(Integers e) {
  const __m512i one = _mm512_set1_epi32(1), least = _mm512_set1_epi32(kPowerOfMinus128);
  const __m512i denormal = _mm512_sllv_epi32(least, _mm512_min_epi32(e.v, one));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e.v, one), 23);
  return {_mm512_castsi512_ps(_mm512_max_epi32(normal, denormal))};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
