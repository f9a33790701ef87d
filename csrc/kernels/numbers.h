// fp16 and bf16 to and from fp32, one number at a time, rounding to nearest even.
//
// Included by kernels of every tier and by packing: everything here has internal linkage, so that
// each file has its own copy and none compiled for a newer processor is linked elsewhere.
#pragma once

#include <cstdint>

namespace octavo {
namespace {

inline float bits_to_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bf16_to_float(uint16_t bits) {
  return bits_to_float(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_to_bits(value);
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  if (nan) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity, or NaN, which the processor's own conversion makes quiet
    const uint32_t quiet = magnitude > 0x7C00u ? 0x400000u : 0u;
    return bits_to_float(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13) | quiet);
  }
  if (magnitude < 0x400u) {  // below the normal numbers: a whole multiple of 2^-24
    const float value = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
    return bits_to_float(sign | float_to_bits(value));
  }
  return bits_to_float(sign | ((magnitude << 13) + 0x38000000u));  // exponent bias 15 → 127
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to ≥ 65520
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the multiple of 2^-24 rounded
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

}  // namespace
}  // namespace octavo
