// Sixteen-bit floats as bits, without the processor's help. For packing only: kernels have theirs.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bfloat_value(uint16_t bits) { return float_of_bits(uint32_t{bits} << 16); }

inline float half_value(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // Exponents differ by 112; multiplying with 2^112 moves them and turns denormals into normals.
  const float magnitude = float_of_bits(rest << 13) * 0x1p112f;
  return float_of_bits(sign | bits_of_float(magnitude));
}

// To the nearest, ties to even; too large: infinite.
inline uint16_t to_half(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520, from which on rounding gives infinity
  if (magnitude < 0x38800000) {
    // Denormal: adding 1/2 puts the unit 2^-24 at the float's last place, so that addition rounds.
    const float shifted = float_of_bits(magnitude) + 0.5f;
    return sign | (bits_of_float(shifted) - 0x3f000000);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | ((rounded - 0x38000000) >> 13);
}

}  // namespace octavo
