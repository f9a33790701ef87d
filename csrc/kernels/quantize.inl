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

inline void prepare_group(const float* x, uint8_t* out) {
  constexpr uint32_t kInfinity = 0x7F800000u;
  const uint32_t most = largest_magnitude(x);
  // A number that is not finite makes the scale NaN, and with it all of the row's products.
  const float scale = bits_to_float(most < kInfinity ? most : kInfinity + 0x400000u) / 127.0f;
  if (!(scale > 0.0f)) {
    __builtin_memset(out, 0, kGroup);
    return write_sums(out, scale, {0, 0});
  }
  // If the scale is so small that it has few bits left, quotients exceed 127.
  const Floats divisor = splat(scale), limit = splat(127.0f);
  Floats codes[kGroup / kLanes];
  for (int i = 0; i < kGroup / kLanes; i++) {
    const Floats quotient = round_even(load(x + i * kLanes) / divisor);
    codes[i] = max(negate(limit), min(limit, quotient));
  }
  write_sums(out, scale, store_codes(codes, out));
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

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
