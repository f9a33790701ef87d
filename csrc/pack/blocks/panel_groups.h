// 32 inputs of one output between a stored block and a panel of codes: read from the one by the
// functions of a type, and written to the other.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/group_layout.h"

namespace octavo {

constexpr int kSuperBlock = 256;  // inputs of a K type's block
constexpr int kParts = kSuperBlock / kGroup;
constexpr uint16_t kHalfSign = 0x8000;
// Codes are read and written by words of four bytes.
constexpr uint32_t kLow = 0x0f0f0f0f, kTwo = 0x03030303, kOne = 0x01010101;

// 32 inputs of one output, between the stored block and the panel.
struct Group {
  uint32_t steps[kSteps];  // four codes each
  uint16_t scale;        // fp16, as is the minimum; of the whole block
  uint16_t minimum;
  uint8_t factors[2];    // of the scale: those of this group (Mx4: an exponent)
  uint8_t minimum_factor;  // U2K: none, the factors have both
};

inline uint16_t read_u16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

inline uint32_t read_word(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// 16 bytes of two codes each: the first 16 codes below, the others above.
inline void read_halves(const uint8_t* bytes, Group& group) {
  constexpr int kHalf = kSteps / 2;
  for (int step = 0; step < kHalf; step++) {
    const uint32_t word = read_word(bytes + 4 * step);
    group.steps[step] = word & kLow;
    group.steps[kHalf + step] = word >> 4 & kLow;
  }
}

constexpr bool is_of_bytes(Format format) {
  return format == Format::U8 || format == Format::U8By64 || format == Format::U8By128 ||
         format == Format::U8Wide;
}

// Puts four bytes of codes into row `row`, where the output has them.
inline void put(uint8_t* codes, int row, int output, uint32_t four) {
  std::memcpy(codes + row * kCodeRow + output * 4, &four, sizeof four);
}

template <Format format>
void write_codes(const Group& group, int output, uint8_t* codes) {
  const uint32_t* steps = group.steps;
  if constexpr (is_of_bytes(format)) {
    for (int step = 0; step < kSteps; step++) put(codes, step, output, steps[step]);
    return;
  }
  if constexpr (has_two_bits(format) || has_three_bits(format)) {
    uint32_t lower[2] = {}, third = 0;
    for (int step = 0; step < kSteps; step++) {
      lower[step / 4] |= (steps[step] & kTwo) << (2 * (step % 4));
      third |= (steps[step] >> 2 & kOne) << step;
    }
    for (int row = 0; row < 2; row++) put(codes, row, output, lower[row]);
    if constexpr (has_three_bits(format)) put(codes, 2, output, third);
    return;
  }
  constexpr int kPairs = kSteps / 2;
  for (int pair = 0; pair < kPairs; pair++) {
    const uint32_t low = steps[2 * pair] & kLow, high = steps[2 * pair + 1] & kLow;
    put(codes, pair, output, low | high << 4);
  }
  if constexpr (format == Format::U5K) {
    uint32_t fifth = 0;
    for (int step = 0; step < kSteps; step++) fifth |= (steps[step] >> 4 & kOne) << step;
    put(codes, kPairs, output, fifth);
  } else if constexpr (format == Format::U6) {
    for (int part = 0; part < 2; part++) {
      uint32_t upper = 0;
      for (int step = 0; step < 4; step++) {
        upper |= (steps[part * 4 + step] >> 4 & kTwo) << (2 * step);
      }
      put(codes, kPairs + part, output, upper);
    }
  }
}

inline void write_half(uint8_t* header, int index, uint16_t half) {
  std::memcpy(header + index * sizeof half, &half, sizeof half);
}

template <Format format>
void write_header(const Group& group, int index, int output, uint8_t* header) {
  if constexpr (format == Format::Mx4) {
    header[index * kPanel + output] = group.factors[0];
    return;
  }
  write_half(header, output, group.scale);
  constexpr GroupLayout kLayout = kGroupLayouts[static_cast<int>(format)];
  if constexpr (kLayout.minima) write_half(header, kPanel + output, group.minimum);
  if constexpr (has_signed_factors(format) || format == Format::U2K) {
    const int at = format == Format::U2K ? kHalfBytes : kHeaderLine;
    uint8_t* factors = header + at + index * kLayout.parts * kPanel + output;
    for (int part = 0; part < kLayout.parts; part++) factors[part * kPanel] = group.factors[part];
  } else if constexpr (format == Format::U4K || format == Format::U5K) {
    uint8_t* bits = header + kSixBits + index * kSixBitsGroup;
    bits[output] = static_cast<uint8_t>(group.factors[0] | group.minimum_factor << 6);
    bits[kPanel + output % 16] |= group.minimum_factor >> 2 << (output / 16 * 4);
  }
}

template <Format format>
void write_group(const Group& group, int index, int output, uint8_t* block) {
  constexpr GroupLayout kLayout = kGroupLayouts[static_cast<int>(format)];
  write_header<format>(group, index, output, block);
  write_codes<format>(group, output, block + kLayout.header_bytes + index * kLayout.code_bytes);
}

}  // namespace octavo
