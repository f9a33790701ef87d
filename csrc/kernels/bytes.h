// Numbers read from and written to bytes at any alignment, for codes and for quantised rows.
#pragma once

#include "kernels/numbers.h"

#define OCTAVO_INLINE inline __attribute__((always_inline))

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline uint32_t read_four(const uint8_t* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return four;
}

inline float read_float(const uint8_t* p) { return bits_to_float(read_four(p)); }
inline void write_integer(uint8_t* p, int32_t value) { __builtin_memcpy(p, &value, sizeof value); }
inline void write_float(uint8_t* p, float value) { __builtin_memcpy(p, &value, sizeof value); }

constexpr int kPowerOfMinus128 = 1 << 21;  // the bits of 2^-128 as a float

inline float power_less_128(int e) {
  const int bits = e >= 2 ? (e - 1) << 23 : kPowerOfMinus128 << e;
  return bits_to_float(static_cast<uint32_t>(bits));
}

// The sums of the first and of the last 16 of 32 codes.
struct Halves {
  int32_t first, second;
};

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
