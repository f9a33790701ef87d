// Lines of codes that stand for floats, by registers of at least 16 bytes.
//
// The two bytes of each bf16 number are looked up in tables of sixteen and then interleaved. Each
// tier defines in its own codes.h, beside what kernels/codes.inl needs:
//   store_codes
//   interleaved<half>  the bytes of a and b in turns: of the first (0) or the last (1) 8 bytes of
//                      each 16
//   chosen             the bytes of a where those of `test` are zero, and of b elsewhere
#pragma once

#include <codes.h>

#include "kernels/bytes.h"
#include "kernels/coding_tables.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kCodesBytes = sizeof(Codes);

OCTAVO_INLINE void store_pairs(uint8_t* pairs, Codes low, Codes high) {
  store_codes(pairs, interleaved<0>(low, high));
  store_codes(pairs + kPairBytes / 2, interleaved<1>(low, high));
}

// Above the lowest two exponents the upper byte depends on the sign and the upper three bits of the
// exponent alone, and the lower byte on the other four bits. Of codes below 16 both depend on these
// four, because the numbers without an exponent have several.
OCTAVO_INLINE void decode_codes(E4m3, const uint8_t* codes, uint8_t* pairs) {
  static constexpr ByteTable kLow = byte_table<E4m3>(16, 1, 0), kHigh = byte_table<E4m3>(0, 16, 8);
  static constexpr ByteTable kLeastLow = byte_table<E4m3>(0, 1, 0),
                             kLeastHigh = byte_table<E4m3>(0, 1, 8);
  const Codes code = load_codes(codes);
  const Codes four = masked(code, 15), three = masked(shifted<-4>(code), 7);
  const Codes upper = masked(code, 0x70);
  const Codes low = chosen(upper, look_up(kLeastLow.values, four), look_up(kLow.values, four));
  const Codes high = chosen(upper, look_up(kLeastHigh.values, four), look_up(kHigh.values, three));
  store_pairs(pairs, low, with_bits(high, code, 0x80));
}

// Codes of four bits: two lines of pairs, of the lower halves of the bytes and of the upper ones.
template <class Coding>
OCTAVO_INLINE void decode_codes(Coding, const uint8_t* codes, uint8_t* pairs) {
  static constexpr ByteTable kLow = byte_table<Coding>(0, 1, 0);
  static constexpr ByteTable kHigh = byte_table<Coding>(0, 1, 8);
  const Codes both = load_codes(codes);
  const Codes lower = masked(both, 15), upper = masked(shifted<-4>(both), 15);
  store_pairs(pairs, look_up(kLow.values, lower), look_up(kHigh.values, lower));
  store_pairs(pairs + kPairBytes, look_up(kLow.values, upper), look_up(kHigh.values, upper));
}

template <class Coding>
OCTAVO_INLINE void decode_line(const uint8_t* line, uint8_t* pairs) {
#pragma GCC unroll 4
  for (int at = 0; at < kCodeLine; at += kCodesBytes) decode_codes(Coding{}, line + at, pairs + at);
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
