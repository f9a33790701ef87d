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
//                    below 128
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
         format == Format::U4Zero || format == Format::U4Mid;
}

constexpr bool has_five_bits(Format format) {
  return format == Format::U5 || format == Format::U5Min || format == Format::U5K;
}

constexpr bool has_eight_bits(Format format) {
  return format == Format::U8 || format == Format::U8Zero;
}

constexpr bool has_zero_points(Format format) {
  return format == Format::U8Zero || format == Format::U4Zero || format == Format::U3Zero ||
         format == Format::U2Zero;
}

// Formats of one kind, whose kernels are those of the first: an argument has what they differ in.
constexpr bool has_several_spans(Format format) {
  return format == Format::U8 || format == Format::U4 || format == Format::U4Mid ||
         format == Format::U2By64 || has_zero_points(format);
}

constexpr bool has_several_tables(Format format) {
  return format == Format::U3K || format == Format::Table4K;
}

template <Format format>
struct FormatOf {
  static constexpr Format value = format;
};

// Calls `run` with the format whose kernels a format of codes has.
template <class Run>
void with_codes(Format format, Run run) {
  switch (format) {
    case Format::U4:
    case Format::U4By64:
    case Format::U4By128: return run(FormatOf<Format::U4>{});
    case Format::U4Min: return run(FormatOf<Format::U4Min>{});
    case Format::U4K: return run(FormatOf<Format::U4K>{});
    case Format::U5: return run(FormatOf<Format::U5>{});
    case Format::U5Min: return run(FormatOf<Format::U5Min>{});
    case Format::U5K: return run(FormatOf<Format::U5K>{});
    case Format::U6: return run(FormatOf<Format::U6>{});
    case Format::Table4: return run(FormatOf<Format::Table4>{});
    case Format::Mx4: return run(FormatOf<Format::Mx4>{});
    case Format::U4Zero:
    case Format::U4ZeroBy64:
    case Format::U4ZeroBy128: return run(FormatOf<Format::U4Zero>{});
    case Format::U8Zero:
    case Format::U8ZeroBy64:
    case Format::U8ZeroBy128: return run(FormatOf<Format::U8Zero>{});
    case Format::U4Mid:
    case Format::U4MidBy64:
    case Format::U4MidBy128: return run(FormatOf<Format::U4Mid>{});
    case Format::U3Zero:
    case Format::U3ZeroBy64:
    case Format::U3ZeroBy128: return run(FormatOf<Format::U3Zero>{});
    case Format::U2Zero:
    case Format::U2ZeroBy64:
    case Format::U2ZeroBy128: return run(FormatOf<Format::U2Zero>{});
    case Format::U2By64:
    case Format::U2By128:
    case Format::U2By256: return run(FormatOf<Format::U2By64>{});
    case Format::U2K: return run(FormatOf<Format::U2K>{});
    case Format::U3K:
    case Format::Table3Iq1:
    case Format::Table3Iq2: return run(FormatOf<Format::U3K>{});
    case Format::Table4Xxs:
    case Format::Table4S:
    case Format::Table4K: return run(FormatOf<Format::Table4K>{});
    default: return run(FormatOf<Format::U8>{});
  }
}

// The bytes of a group, with its share of the header.
constexpr int group_bytes(Format format) {
  return layout_of(format).code_bytes + layout_of(format).header_bytes / layout_of(format).span;
}

// The bits that are stored for a step.
template <Format format, int step>
OCTAVO_INLINE Codes load_bits(const uint8_t* codes) {
  if constexpr (has_eight_bits(format)) {
    return load_codes(codes + step * kCodeRow);
  } else if constexpr (has_two_bits(format) || has_three_bits(format)) {
    const Codes four = load_codes(codes + step / 4 * kCodeRow);
    const Codes two_bits = masked(shifted<-2 * (step % 4)>(four), 3);
    if constexpr (has_two_bits(format)) return two_bits;
    const Codes third = load_codes(codes + kSteps / 4 * kCodeRow);
    return with_bits(two_bits, shifted<2 - step>(third), 4);
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
    } else {
      return four_bits;
    }
  }
}

// Step `step` of kLanes outputs; `codes` is where the group's codes begin for the first of them.
template <Format format, int step>
OCTAVO_INLINE Codes decode(const uint8_t* codes, const Variant& variant) {
  const Codes bits = load_bits<format, step>(codes);
  if constexpr (has_several_tables(format)) return look_up(variant.table, bits);
  if constexpr (has_table(format)) return look_up(kCodeTable<format>.values, bits);
  return bits;
}

// The codes of an odd step in the high halves of their bytes, and so sixteen times as large.
template <Format format, int step>
OCTAVO_INLINE Codes decode_high(const uint8_t* codes) {
  return masked(load_codes(codes + step / 2 * kCodeRow), 0xF0);
}

// What is stored of one code.
template <Format format>
inline int bits_at(const uint8_t* codes, int output, int input) {
  const int step = input / 4;
  const uint8_t* byte = codes + output * 4 + input % 4;
  if constexpr (has_eight_bits(format)) return byte[step * kCodeRow];
  if constexpr (has_two_bits(format) || has_three_bits(format)) {
    const int two_bits = byte[step / 4 * kCodeRow] >> (step % 4 * 2) & 3;
    if constexpr (has_two_bits(format)) return two_bits;
    return two_bits | (byte[kSteps / 4 * kCodeRow] >> step & 1) << 2;
  }
  const int four_bits = byte[step / 2 * kCodeRow] >> (step % 2 * 4) & 15;
  if constexpr (has_five_bits(format)) {
    return four_bits | (byte[kSteps / 2 * kCodeRow] >> step & 1) << 4;
  } else if constexpr (format == Format::U6) {
    const int upper = byte[(kSteps / 2 + step / 4) * kCodeRow] >> (step % 4 * 2) & 3;
    return four_bits | upper << 4;
  } else {
    return four_bits;
  }
}

// One code, with its offset, for looking up single rows.
template <Format format>
inline int code_at(const uint8_t* codes, int output, int input, const Variant& variant) {
  const int bits = bits_at<format>(codes, output, input);
  if constexpr (has_several_tables(format)) return static_cast<uint8_t>(variant.table[bits]);
  if constexpr (has_table(format)) return static_cast<uint8_t>(kCodeTable<format>.values[bits]);
  return bits;
}

// Where a prepared group has the start of integer sums, or a multiple of it: what is subtracted
// from codes times the sum of all inputs, or of half of them.
struct StartPlace {
  int at;
  int shift;  // of the number there to the left; to the right if it is negative
};

template <Format format>
constexpr StartPlace start_at(int part) {
  constexpr int kOffset = layout_of(format).offset;
  if constexpr (layout_of(format).parts == 2) {
    static_assert(kOffset == 0 || kOffset == 32 || kOffset == 64);
    return {kPreparedStart32 + part * 4, kOffset == 64 ? 1 : 0};
  }
  switch (kOffset) {
    case 1: return {kPreparedStart8, -3};
    case 8: return {kPreparedStart8, 0};
    case 16: return {kPreparedStart16, 0};
    default: return {kPreparedStart128, 0};
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
