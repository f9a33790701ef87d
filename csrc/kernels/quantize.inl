// Activations as int8: for each 32 inputs a scale d = max|x| / 127 and q = x / d, rounded to even,
// with the sums of q that products with codes need (kernels/group_layout.h).
//
// Each tier defines in its own quantize.h:
//   largest_magnitude  the bits of the largest magnitude of 32 floats. Compared as integers,
//                      magnitudes keep their order, and NaN counts as larger than infinity, so
//                      that nothing that is not finite is overlooked.
//   store_codes        stores whole numbers from -127 to 127 as bytes, and sums the first and the
//                      last 16 of them
#pragma once

#include <quantize.h>

#include "kernels/codes.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// The numbers that follow the codes in a prepared group.
inline void write_sums(uint8_t* out, float scale, Halves halves) {
  const int32_t sum = halves.first + halves.second;
  write_float(out + kPreparedScale, scale);
  write_float(out + kPreparedSum, scale * static_cast<float>(sum));
  write_integer(out + kPreparedStart8, -8 * sum);
  write_integer(out + kPreparedStart16, -16 * sum);
  write_integer(out + kPreparedStart128, -128 * sum);
  write_integer(out + kPreparedStart32, -32 * halves.first);
  write_integer(out + kPreparedStart32 + 4, -32 * halves.second);
  write_integer(out + kPreparedStart32 + 8, 0);  // the rest of the line
}

// The scale of numbers whose largest magnitude has these bits. One that is not finite makes the
// scale NaN, and with it all of the row's products.
inline float scale_for(uint32_t most) {
  constexpr uint32_t kInfinity = 0x7F800000u;
  return bits_to_float(most < kInfinity ? most : kInfinity + 0x400000u) / 127.0f;
}

// Stores the codes of 32 numbers; returns their sums.
inline Halves quantize(const float* x, float scale, uint8_t* out) {
  if (!(scale > 0.0f)) {
    __builtin_memset(out, 0, kGroup);
    return {0, 0};
  }
  // If the scale is so small that it has few bits left, quotients exceed 127.
  const Floats divisor = splat(scale), limit = splat(127.0f);
  Floats codes[kGroup / kLanes];
  for (int i = 0; i < kGroup / kLanes; i++) {
    const Floats quotient = round_even(load(x + i * kLanes) / divisor);
    codes[i] = max(negate(limit), min(limit, quotient));
  }
  return store_codes(codes, out);
}

inline void prepare_group(const float* x, uint8_t* out) {
  const float scale = scale_for(largest_magnitude(x));
  write_sums(out, scale, quantize(x, scale, out));
}

// A wide group, which has `count` inputs.
inline void prepare_wide_group(const float* x, int count, uint8_t* out) {
  uint32_t most = 0;
  for (int first = 0; first < count; first += kGroup) {
    const uint32_t found = largest_magnitude(x + first);
    most = found > most ? found : most;
  }
  const float scale = scale_for(most);
  int32_t sum = 0;
  for (int first = 0; first < count; first += kGroup) {
    const Halves halves = quantize(x + first, scale, out + first);
    sum += halves.first + halves.second;
  }
  __builtin_memset(out + count, 0, kPreparedWide - count);
  write_float(out + kWideScale, scale);
  write_integer(out + kWideStart, -128 * sum);
}

inline size_t prepared_int8_bytes(int inputs) {
  return static_cast<size_t>(inputs / kGroup) * kPreparedGroup;
}

inline void prepare_int8(const float* x, size_t x_stride, int rows, int inputs, uint8_t* prepared) {
  for (int row = 0; row < rows; row++) {
    for (int first = 0; first < inputs; first += kGroup) {
      prepare_group(x + row * x_stride + first, prepared);
      prepared += kPreparedGroup;
    }
  }
}

// An odd number of lines: rows a power of two apart would all map to one set of the L1.
inline size_t prepared_wide_bytes(int inputs) {
  return (static_cast<size_t>((inputs + kWide - 1) / kWide) * kPreparedWide / kAlign | 1) * kAlign;
}

inline void prepare_wide(const float* x, size_t x_stride, int rows, int inputs, uint8_t* prepared) {
  for (int row = 0; row < rows; row++) {
    uint8_t* group = prepared + row * prepared_wide_bytes(inputs);
    for (int first = 0; first < inputs; first += kWide) {
      const int count = inputs - first < kWide ? inputs - first : kWide;
      prepare_wide_group(x + row * x_stride + first, count, group);
      group += kPreparedWide;
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
