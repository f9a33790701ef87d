// Int8, int4, FP8 and NF4 made at load: the scale and the codes for a group of floats.
#include "pack/choose_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/coding_tables.h"
#include "kernels/numbers.h"

namespace octavo {
namespace {

constexpr uint16_t kNotANumber = 0x7e00;
constexpr float kSmallestHalf = 0x1p-24f;

// The value of the largest magnitude, with its sign; NaN if a value is not finite.
float extreme_of(const float* values, int count) {
  float extreme = 0.0f, check = 0.0f;
  for (int i = 0; i < count; i++) {
    check += values[i] * 0.0f;  // a NaN as soon as one is infinite or a NaN
    if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
  }
  return extreme + check;
}

// The largest magnitude; infinite or a NaN if a value is. Bits of magnitudes are in the order of
// these, and compilers turn the comparisons of whole numbers into vectors.
float largest_of(const float* values, int count) {
  int32_t largest = 0;
  for (int i = 0; i < count; i++) {
    const auto bits = static_cast<int32_t>(float_to_bits(values[i]) & 0x7fffffffu);
    largest = std::max(largest, bits);
  }
  return bits_to_float(static_cast<uint32_t>(largest));
}

// Rounds to the nearest whole number, ties to even, for magnitudes below 2^22: compilers turn it
// into two vector additions, which they do not with std::nearbyint.
template <class Value>
Value whole(Value value) { return (value + 0x1.8p23f) - 0x1.8p23f; }

// How well codes from -8 to 7 can do with values · inverse rounded: the best scale for these codes
// is sum(v·q) / sum(q·q), and takes sum(v·q)² / sum(q·q) off the squared error.
struct Fit {
  float scale = 0.0f;
  float gain = 0.0f;
};

Fit fit_four_bits(const float* values, int count, float inverse) {
  // Four sums, as wide as the smallest vector: compilers keep the one order of a single sum.
  using Four = float __attribute__((vector_size(16)));
  Four products{}, squares{};
  for (int i = 0; i < count; i += 4) {
    Four value;
    std::memcpy(&value, values + i, sizeof value);
    Four code = whole(value * inverse);
    code = code < -8.0f ? Four{} - 8.0f : code;
    code = code > 7.0f ? Four{} + 7.0f : code;
    products += value * code;
    squares += code * code;
  }
  const float product = (products[0] + products[1]) + (products[2] + products[3]);
  const float square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
  if (square == 0.0f) return {};
  const float scale = product / square;
  return {scale, product * scale};
}

void four_bit_codes(const float* values, int count, float scale, uint8_t* codes) {
  for (int i = 0; i < count; i++) {
    const float code = std::min(std::max(whole(values[i] / scale), -8.0f), 7.0f);
    codes[i] = static_cast<uint8_t>(static_cast<int>(code) + 8);
  }
}

constexpr float kMostE4m3 = 448.0f, kLeastNormal = 0x1p-6f, kLeastCode = 0x1p-9f;
constexpr int kBias = 120;  // between the exponents of E4M3 and fp32
constexpr float kLeastScale = 0x1p-126f;  // groups of smaller values become zeros
constexpr uint8_t kZeros = 0x77;          // two codes of NF4's zero

// The nearest code, halves to even. Adding a number whose last bit is worth as much as that of the
// result rounds.
uint8_t e4m3_of(float value) {
  const uint32_t bits = float_to_bits(value), sign = bits >> 31 << 7;
  const float magnitude = std::min(bits_to_float(bits & 0x7fffffffu), kMostE4m3);
  const float octave = bits_to_float(float_to_bits(magnitude) & 0x7f800000u);
  const float last = std::max(octave, kLeastNormal) * 0x1.8p20f;
  const float rounded = (magnitude + last) - last;
  const uint32_t code = rounded < kLeastNormal
                            ? static_cast<uint32_t>(rounded / kLeastCode)
                            : (float_to_bits(rounded) >> 20) - (kBias << 3);
  return static_cast<uint8_t>(sign | code);
}

// The number of borders between neighbours of the table that a value is above.
int nf4_of(float value) {
  int code = 0;
  for (int i = 0; i < 15; i++) {
    code += value > 0.5f * (Nf4::kNumbers[i] + Nf4::kNumbers[i + 1]);
  }
  return code;
}

// A NaN if a value is not finite; codes of others do not count then.
float scale_of(const float* values, int count, float most) {
  const float largest = largest_of(values, count);
  return std::isfinite(largest) ? largest / most : bits_to_float(0x7fc00000u);
}

}  // namespace

uint16_t choose_eight_bits(const float* values, int count, uint8_t* codes) {
  std::fill(codes, codes + count, uint8_t{128});
  const float largest = largest_of(values, count);
  if (!std::isfinite(largest)) return kNotANumber;
  const uint16_t half = float_to_half(largest / 127.0f);
  const float scale = half_to_float(half);
  if (scale == 0.0f) return 0;
  for (int i = 0; i < count; i++) {
    const float code = std::min(std::max(whole(values[i] / scale), -127.0f), 127.0f);
    codes[i] = static_cast<uint8_t>(static_cast<int>(code) + 128);
  }
  return half;
}

uint16_t choose_four_bits(const float* values, int count, uint8_t* codes) {
  std::fill(codes, codes + count, uint8_t{8});
  const float extreme = extreme_of(values, count);
  if (!std::isfinite(extreme)) return kNotANumber;
  if (std::fabs(extreme) < kSmallestHalf) return 0;
  // There is no code 8: first the sign that gives -8 to the extreme value, then the other one,
  // with scales at which that value falls between -9.5 (clipped) and -5.5.
  Fit best;
  for (const float sign : {-1.0f, 1.0f}) {
    for (float reach = 5.5f; reach <= 9.5f; reach += 0.25f) {
      const Fit fit = fit_four_bits(values, count, sign * reach / extreme);
      if (fit.gain > best.gain) best = fit;
    }
  }
  const uint16_t half = float_to_half(best.scale);
  const float scale = half_to_float(half);
  if (scale == 0.0f) return 0;
  four_bit_codes(values, count, scale, codes);
  return half;
}

float choose_e4m3(const float* values, int count, uint8_t* codes) {
  const float scale = scale_of(values, count, kMostE4m3);
  std::fill_n(codes, count, uint8_t{0});
  if (!(scale >= kLeastScale)) return scale;
  for (int i = 0; i < count; i++) codes[i] = e4m3_of(values[i] / scale);
  return scale;
}

float choose_nf4(const float* values, int count, uint8_t* codes) {
  const float scale = scale_of(values, count, 1.0f);
  std::fill_n(codes, count / 2, kZeros);
  if (!(scale >= kLeastScale)) return scale;
  for (int i = 0; i < count; i += 2) {
    const int first = nf4_of(values[i] / scale), second = nf4_of(values[i + 1] / scale);
    codes[i / 2] = static_cast<uint8_t>(first << 4 | second);
  }
  return scale;
}

}  // namespace octavo
