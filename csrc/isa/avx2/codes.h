// Codes of weights and their integer products (kernels/codes.inl says what each function does).
#pragma once

#include <immintrin.h>

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

struct Codes { __m256i v; };
struct Four { __m256i v; };
struct Integers { __m256i v; };
constexpr bool kTakesOffsetOff = true;
constexpr bool kDotsHighCodes = false;

inline Codes load_codes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline Codes masked(Codes a, int mask) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(mask))}; }
template <int left>
OCTAVO_INLINE Codes shifted(Codes a) {
  if constexpr (left >= 0) return {_mm256_slli_epi32(a.v, left)};
  else return {_mm256_srli_epi32(a.v, -left)};
}
inline Codes with_bits(Codes a, Codes b, int mask) {
  return {_mm256_or_si256(a.v, masked(b, mask).v)};
}
inline Codes look_up(const int8_t* table, Codes a) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), a.v)};
}
inline void store_codes(uint8_t* p, Codes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
template <int half>
OCTAVO_INLINE Codes interleaved(Codes a, Codes b) {
  return {half ? _mm256_unpackhi_epi8(a.v, b.v) : _mm256_unpacklo_epi8(a.v, b.v)};
}
inline Codes chosen(Codes test, Codes a, Codes b) {
  return {_mm256_blendv_epi8(b.v, a.v, _mm256_cmpeq_epi8(test.v, _mm256_setzero_si256()))};
}
inline Four splat_four(const uint8_t* p) { return {_mm256_set1_epi32(read_four(p))}; }
inline Integers splat_integer(const uint8_t* p) { return {_mm256_set1_epi32(read_four(p))}; }
inline Integers no_integers() { return {_mm256_setzero_si256()}; }
// Products of bytes are added up by two in 16 bits, saturating. Up to 128 · 127 · 2 they cannot; a
// large code therefore loses its offset of 128 first, and gives its sign to the other factor (never
// -128), so that at most 128 · 127 · 2 remains.
template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i pairs;
  if constexpr (small) {
    pairs = _mm256_maddubs_epi16(a.v, b.v);
  } else {
    const __m256i value = _mm256_xor_si256(a.v, _mm256_set1_epi8(-128));
    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(b.v, value));
  }
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, ones))};
}
inline Floats to_floats(Integers a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline Floats as_floats(Integers a) { return {_mm256_castsi256_ps(a.v)}; }
inline Integers widened(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
inline Integers widened_signed(const uint8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
inline Integers operator&(Integers a, int mask) {
  return {_mm256_and_si256(a.v, _mm256_set1_epi32(mask))};
}
inline Integers with_bits(Integers a, Integers b, int mask) {
  return {_mm256_or_si256(a.v, (b & mask).v)};
}
inline Integers operator<<(Integers a, int left) {
  return {_mm256_sll_epi32(a.v, _mm_cvtsi32_si128(left))};
}
inline Integers operator>>(Integers a, int right) {
  return {_mm256_srl_epi32(a.v, _mm_cvtsi32_si128(right))};
}
inline Floats powers_less_128(Integers e) {
  const __m256i one = _mm256_set1_epi32(1), least = _mm256_set1_epi32(kPowerOfMinus128);
  const __m256i denormal = _mm256_sllv_epi32(least, _mm256_min_epi32(e.v, one));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e.v, one), 23);
  return {_mm256_castsi256_ps(_mm256_max_epi32(normal, denormal))};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
