// Activations as int8: for each 32 inputs a scale d = max|x| / 127 and q = x / d, rounded to even,
// with the sums of q that products with codes need (kernels/group_layout.h).
#pragma once

#include "kernels/codes.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline size_t prepared_int8_bytes(int inputs) {
  return static_cast<size_t>(inputs / kGroup) * kPreparedGroup;
}

inline void write_integer(uint8_t* p, int32_t value) { __builtin_memcpy(p, &value, sizeof value); }
inline void write_float(uint8_t* p, float value) { __builtin_memcpy(p, &value, sizeof value); }

// What stands behind the codes: the scale, and sums of the first and of the second 16 codes.
inline void write_sums(uint8_t* out, float scale, int32_t first, int32_t second) {
  const int32_t sum = first + second;
  write_float(out + kPreparedScale, scale);
  write_float(out + kPreparedSum, scale * static_cast<float>(sum));
  write_integer(out + kPreparedStart8, -8 * sum);
  write_integer(out + kPreparedStart16, -16 * sum);
  write_integer(out + kPreparedStart128, -128 * sum);
  write_integer(out + kPreparedStart32, -32 * first);
  write_integer(out + kPreparedStart32 + 4, -32 * second);
  write_integer(out + kPreparedStart32 + 8, 0);  // the rest of the line
}

inline void prepare_group(const float* x, uint8_t* out) {
  constexpr int kVectors = kGroup / kLanes;
  Floats most = splat(0.0f), check = splat(0.0f);
  for (int i = 0; i < kVectors; i++) {
    const Floats values = load(x + i * kLanes);
    most = max(most, magnitude(values));
    check = check + values * splat(0.0f);  // not a number once one value is not finite
  }
  // Such a group has a scale that is not a number: all products show that something is wrong.
  const float scale = largest(most) / 127.0f + total(check);
  if (!(scale > 0.0f)) {
    __builtin_memset(out, 0, kGroup);
    return write_sums(out, scale, 0, 0);
  }
  // Where the scale is so small that it has few bits left, quotients exceed 127.
  const Floats divisor = splat(scale), limit = splat(127.0f);
  Floats sums[2] = {splat(0.0f), splat(0.0f)};
  for (int i = 0; i < kVectors; i++) {
    const Floats quotient = round_even(load(x + i * kLanes) / divisor);
    const Floats code = max(negate(limit), min(limit, quotient));
    store_bytes(out + i * kLanes, code);
    Floats& sum = sums[i * 2 / kVectors];
    sum = sum + code;  // whole numbers: exact in any order
  }
  write_sums(out, scale, static_cast<int32_t>(total(sums[0])),
             static_cast<int32_t>(total(sums[1])));
}

inline void prepare_int8(const float* x, size_t x_stride, int rows, int inputs, uint8_t* prepared) {
  for (int row = 0; row < rows; row++) {
    for (int first = 0; first < inputs; first += kGroup) {
      prepare_group(x + row * x_stride + first, prepared);
      prepared += kPreparedGroup;
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
