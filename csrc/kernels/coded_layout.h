// How a panel of codes that stand for floats lies in memory: shared by packing and kernels.
//
// A panel is a sequence of groups, whose inputs share a scale: [32] scales (fp32), and the codes in
// lines of 64 bytes. A line has two inputs of all 32 outputs (codes of 8 bits), or four (of 4 bits:
// the first two in the low halves of the bytes). Each 16 bytes have two inputs of four outputs and
// then those of the outputs 16 further on: registers with the lower and the upper bytes of bf16
// numbers, interleaved by such parts, are pairs as products take them (gemm_float.inl).
//
// NVFP4By16 has [32] scales (fp32) of all inputs first. Two of its groups follow their scales:
// [2][32] E4M3 floats, which the first scales multiply.
#pragma once

#include "kernels/table.h"

namespace octavo {

constexpr int kCodeLine = kPanel * 2;    // bytes
constexpr int kPairBytes = kPanel * 4;   // of two inputs as bf16 numbers
constexpr int kMostCodedGroup = 128;

constexpr int kSmallScaleSpan = 2;  // groups of NVFP4By16 whose scales lie together

struct CodedLayout {
  int group;       // inputs that share a scale
  int code_bits;
  int span = 1;    // groups whose scales lie together
  int scale_bytes = kPanel * 4;  // of so many groups
  int first_bytes = 0;           // of the scales of all inputs
};

// None for formats without such codes.
constexpr CodedLayout coded_layout_of(Format format) {
  switch (format) {
    case Format::F8By32: return {32, 8};
    case Format::F8By128: return {128, 8};
    case Format::NF4By64:
    case Format::FP4By64: return {64, 4};
    case Format::NVFP4By16: return {16, 4, kSmallScaleSpan, kPanel * kSmallScaleSpan, kPanel * 4};
    default: return {0, 0};
  }
}

constexpr bool is_coded_format(Format format) { return coded_layout_of(format).group > 0; }

// Whether products are of bf16 numbers, whose sums have an order.
constexpr bool multiplies_bf16(Format format) {
  return format == Format::BF16 || is_coded_format(format);
}

constexpr size_t code_bytes_of(CodedLayout layout) {
  return static_cast<size_t>(layout.group) * kPanel * layout.code_bits / 8;
}

// Of so many groups as have their scales together.
constexpr size_t span_bytes_of(CodedLayout layout) {
  return layout.scale_bytes + layout.span * code_bytes_of(layout);
}

// Where the first of two inputs of an output has its code in their line.
constexpr int place_in_line(int output) {
  return output % 16 / 4 * 16 + output / 16 * 8 + output % 4 * 2;
}

// The bits of the bf16 number that an E4M3 code stands for, which is exact. The codes of NaN are
// taken for the numbers that they would be (480): packing gives their groups the scale NaN.
constexpr uint16_t bf16_of_e4m3(uint8_t code) {
  const int sign = code >> 7 << 15, exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent) return static_cast<uint16_t>(sign | (exponent + 120) << 7 | mantissa << 4);
  if (mantissa >= 4) return static_cast<uint16_t>(sign | 120 << 7 | (mantissa & 3) << 5);
  if (mantissa >= 2) return static_cast<uint16_t>(sign | 119 << 7 | (mantissa & 1) << 6);
  return static_cast<uint16_t>(sign | (mantissa ? 118 << 7 : 0));
}

}  // namespace octavo
