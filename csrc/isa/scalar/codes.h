// Codes of weights and their integer products (kernels/codes.inl says what each function does).
#pragma once

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

struct Codes { uint32_t v; };
struct Four { uint32_t v; };
struct Integers { int32_t v; };
constexpr bool kTakesOffsetOff = false;
constexpr bool kDotsHighCodes = false;

inline Codes load_codes(const uint8_t* p) { return {read_four(p)}; }
inline Codes masked(Codes a, int mask) {
  return {a.v & static_cast<uint32_t>(mask) * 0x01010101u};
}
template <int left>
OCTAVO_INLINE Codes shifted(Codes a) {
  if constexpr (left >= 0) return {a.v << left};
  else return {a.v >> -left};
}
inline Codes with_bits(Codes a, Codes b, int mask) { return {a.v | masked(b, mask).v}; }
inline Codes look_up(const int8_t* table, Codes a) {
  uint32_t found = 0;
  for (int i = 0; i < 32; i += 8) {
    found |= static_cast<uint32_t>(static_cast<uint8_t>(table[a.v >> i & 15])) << i;
  }
  return {found};
}
inline void store_codes(uint8_t* p, Codes a) { __builtin_memcpy(p, &a.v, sizeof a.v); }
inline Four splat_four(const uint8_t* p) { return {read_four(p)}; }
inline Integers splat_integer(const uint8_t* p) { return {static_cast<int32_t>(read_four(p))}; }
inline Integers no_integers() { return {0}; }
template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  for (int i = 0; i < 32; i += 8) {
    sum.v += static_cast<uint8_t>(a.v >> i) * static_cast<int8_t>(b.v >> i);
  }
  return sum;
}
inline Floats to_floats(Integers a) { return {static_cast<float>(a.v)}; }
inline Floats as_floats(Integers a) { return {bits_to_float(static_cast<uint32_t>(a.v))}; }
inline Integers widened(const uint8_t* p) { return {*p}; }
inline Integers widened_signed(const uint8_t* p) { return {static_cast<int8_t>(*p)}; }
inline Integers operator&(Integers a, int mask) { return {a.v & mask}; }
inline Integers with_bits(Integers a, Integers b, int mask) { return {a.v | (b.v & mask)}; }
inline Integers operator<<(Integers a, int left) { return {a.v << left}; }
inline Integers operator>>(Integers a, int right) { return {a.v >> right}; }
inline Floats powers_less_128(Integers e) {
  return {power_less_128(e.v)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
