// Codes of weights in registers: four inputs of kLanes outputs at a time, how each format's bits
// become bytes (kernels/group_layout.h), and their integer products with activations.
//
// Each tier defines in its own codes.h:
//   Codes            four unsigned bytes for each lane
//   Four             four signed bytes, the same for every lane
//   Integers         an int32 for each lane
//   shifted<left>    bits cross bytes: mask the wanted ones
//   with_bits        a, and those bits of b that are in the mask
//   dot<small>       adds to each lane the products of its four bytes; `small` says that codes are
//                    below 64
//   kTakesOffsetOff  whether `dot` of codes that are not small subtracts their offset of 128
//   kDotsHighCodes   whether `dot` is exact for all bytes, small or not: where it is, add_sixteenth
//                    adds the sixteenth part of sums that are multiples of 16
//   widened          a byte for each lane; those that are shifted to the right are not negative
//   as_floats        the floats of these bits
//   powers_less_128  2^(e - 128) for e from 0 to 255, the two least of which are denormal
#pragma once

#include <codes.h>

#include "kernels/bytes.h"
#include "kernels/group_layout.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// ---- formats ----

constexpr GroupLayout layout_of(Format format) { return kGroupLayouts[static_cast<int>(format)]; }

constexpr bool has_small_codes(Format format) { return layout_of(format).offset < 128; }

constexpr bool has_six_bit_scales(Format format) {
  return format == Format::U4K || format == Format::U5K;
}

constexpr bool has_four_bits(Format format) {
  return format == Format::U4 || format == Format::U4Min || format == Format::U4K ||
         format == Format::U4Zero;
}

constexpr bool has_five_bits(Format format) {
  return format == Format::U5 || format == Format::U5Min || format == Format::U5K;
}

constexpr bool has_zero_points(Format format) { return format == Format::U4Zero; }

// int8 and int4, made at load or not: the groups of a block are an argument of their kernels.
constexpr bool has_several_spans(Format format) {
  return format == Format::U8 || format == Format::U4 || format == Format::U4Zero;
}

// The bytes of a group, with its share of the header.
constexpr int group_bytes(Format format) {
  return layout_of(format).code_bytes + layout_of(format).header_bytes / layout_of(format).span;
}

// A format's table with its offset added, so that codes are unsigned.
struct CodeTable {
  int8_t values[16];
};

constexpr CodeTable code_table(Format format) {
  CodeTable table{};
  for (int i = 0; i < 16; i++) {
    const int value = format == Format::Table4 ? kTableValues[i] : kMxValues[i];
    table.values[i] = static_cast<int8_t>(value + layout_of(format).offset);
  }
  return table;
}

template <Format format>
constexpr CodeTable kCodeTable = code_table(format);

// Step `step` of kLanes outputs; `codes` is where the group's codes begin for the first of them.
template <Format format, int step>
OCTAVO_INLINE Codes decode(const uint8_t* codes) {
  if constexpr (format == Format::U8) {
    return load_codes(codes + step * kCodeRow);
  } else {
    constexpr int kPairs = kSteps / 2;
    const Codes two = load_codes(codes + step / 2 * kCodeRow);
    const Codes four_bits = masked(step % 2 ? shifted<-4>(two) : two, 15);
    if constexpr (has_five_bits(format)) {
      const Codes fifth = load_codes(codes + kPairs * kCodeRow);
      return with_bits(four_bits, shifted<4 - step>(fifth), 0x10);
    } else if constexpr (format == Format::U6) {
      const Codes upper = load_codes(codes + (kPairs + step / 4) * kCodeRow);
      return with_bits(four_bits, shifted<4 - 2 * (step % 4)>(upper), 0x30);
    } else if constexpr (format == Format::Table4 || format == Format::Mx4) {
      return look_up(kCodeTable<format>.values, four_bits);
    } else {
      return four_bits;
    }
  }
}

// The codes of an odd step in the high halves of their bytes, and so sixteen times as large.
template <Format format, int step>
OCTAVO_INLINE Codes decode_high(const uint8_t* codes) {
  return masked(load_codes(codes + step / 2 * kCodeRow), 0xF0);
}

// One code, with its offset, for looking up single rows.
template <Format format>
inline int code_at(const uint8_t* codes, int output, int input) {
  const int step = input / 4;
  const uint8_t* byte = codes + output * 4 + input % 4;
  if constexpr (format == Format::U8) return byte[step * kCodeRow];
  const int four_bits = byte[step / 2 * kCodeRow] >> (step % 2 * 4) & 15;
  if constexpr (has_five_bits(format)) {
    return four_bits | (byte[kSteps / 2 * kCodeRow] >> step & 1) << 4;
  } else if constexpr (format == Format::U6) {
    const int upper = byte[(kSteps / 2 + step / 4) * kCodeRow] >> (step % 4 * 2) & 3;
    return four_bits | upper << 4;
  } else if constexpr (format == Format::Table4 || format == Format::Mx4) {
    return static_cast<uint8_t>(kCodeTable<format>.values[four_bits]);
  } else {
    return four_bits;
  }
}

// The place in a prepared group of the start of integer sums over all inputs, or over half of them.
template <Format format>
constexpr int start_at(int part) {
  switch (layout_of(format).offset) {
    case 8: return kPreparedStart8;
    case 16: return kPreparedStart16;
    case 32: return kPreparedStart32 + part * 4;
    default: return kPreparedStart128;
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
