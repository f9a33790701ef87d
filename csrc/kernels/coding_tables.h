// The kinds of codes that stand for floats.
//
// A coding has kPairs, the pairs of inputs in a line; `bf16`, the bits of the number that a code
// stands for; and kSmallScales: whether scales are E4M3 floats.
#pragma once

#include "kernels/coded_layout.h"

namespace octavo {
namespace {

constexpr uint16_t rounded_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct E4m3 {
  static constexpr bool kSmallScales = false;
  static constexpr int kPairs = 1;
  static constexpr uint16_t bf16(int code) { return bf16_of_e4m3(static_cast<uint8_t>(code)); }
};

// The numbers of bitsandbytes' NF4, times a factor with which rounding them to bf16 loses least: at
// most 0.00065 of the largest number, where 0.0016 would be lost without a factor.
struct Nf4 {
  static constexpr bool kSmallScales = false;
  static constexpr int kPairs = 2;
  static constexpr float kFactor = 1.43658f;
  static constexpr float kNumbers[16] = {
      -1.0f,          -0.6961928f,  -0.52507305f, -0.3949175f,  -0.28444138f, -0.18477343f,
      -0.091050036f,  0.0f,         0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f,
      0.44070983f,    0.562617f,    0.72295684f,  1.0f};
  static constexpr uint16_t bf16(int code) {
    return rounded_bf16(kNumbers[code & 15] * kFactor);
  }
};

// Those of bitsandbytes' FP4, times a factor with which they are exact.
struct Fp4 {
  static constexpr bool kSmallScales = false;
  static constexpr int kPairs = 2;
  static constexpr float kFactor = 12.0f;
  static constexpr float kNumbers[8] = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};
  static constexpr uint16_t bf16(int code) {
    return static_cast<uint16_t>(rounded_bf16(kNumbers[code & 7]) | (code >> 3 & 1) << 15);
  }
};

struct E2m1 {
  static constexpr bool kSmallScales = true;
  static constexpr int kPairs = 2;
  static constexpr float kNumbers[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  static constexpr uint16_t bf16(int code) {
    return static_cast<uint16_t>(rounded_bf16(kNumbers[code & 7]) | (code >> 3 & 1) << 15);
  }
};

// One byte of sixteen bf16 numbers, the lower one or the upper one.
struct ByteTable {
  int8_t values[16];
};

template <class Coding>
constexpr ByteTable byte_table(int first_code, int code_step, int shift) {
  ByteTable table{};
  for (int i = 0; i < 16; i++) {
    const int bits = Coding::bf16((first_code + i * code_step) & 255);
    table.values[i] = static_cast<int8_t>(bits >> shift & 255);
  }
  return table;
}

}  // namespace
}  // namespace octavo
