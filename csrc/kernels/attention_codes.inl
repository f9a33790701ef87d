// Codes of the cache's smaller formats: a row's numbers divided by a scale of the row's own.
#pragma once

#include "kernels/attention_vector.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

constexpr int kMostHeadDim = 576;
constexpr float kInfinity = __builtin_inff();

// The number's nearest code of 8 bits: a sign, an exponent, and kMantissa bits of mantissa. Ties go
// to the even code. Larger numbers than the code `most` become that one.
template <int kMantissa>
inline int8_t to_float8(float x, uint32_t most) {
  constexpr uint32_t kBias = kMantissa == 3 ? 7 : 15;
  constexpr int kDropped = 23 - kMantissa;
  // Adding it leaves the sum as many bits behind the point as the smallest codes have.
  constexpr float kShift = kMantissa == 3 ? 0x1p14f : 0x1p7f;
  constexpr float kLeastNormal = kMantissa == 3 ? 0x1p-6f : 0x1p-14f;
  const uint32_t bits = float_bits(x), size = bits & 0x7FFFFFFFu;
  const float magnitude = x < 0.0f ? -x : x;
  const uint32_t small = float_bits(magnitude + kShift) - float_bits(kShift);
  const uint32_t rounded = size + ((1u << (kDropped - 1)) - 1u) + ((size >> kDropped) & 1u);
  const uint32_t normal = (rounded >> kDropped) - ((127u - kBias) << kMantissa);
  uint32_t code = magnitude < kLeastNormal ? small : normal;
  code = code < most ? code : most;
  return static_cast<int8_t>(code | (bits >> 24 & 0x80u));
}

// How the numbers of a row become codes: kMost is the size of the largest one. If kIsBelow, only
// -kMost is a code, and scales are negative where the row's largest number is positive.
template <CacheFormat kFormat>
struct Codes;

template <>
struct Codes<CacheFormat::Int8> {
  static constexpr float kMost = 127.0f;
  static constexpr bool kIsBelow = false;
  static int8_t code(float x) { return static_cast<int8_t>(__builtin_rintf(x)); }
};
template <>
struct Codes<CacheFormat::E4M3> {
  static constexpr float kMost = 448.0f;
  static constexpr bool kIsBelow = false;
  static int8_t code(float x) { return to_float8<3>(x, 0x7Eu); }
};
template <>
struct Codes<CacheFormat::E5M2> {
  static constexpr float kMost = 57344.0f;
  static constexpr bool kIsBelow = false;
  static int8_t code(float x) { return to_float8<2>(x, 0x7Bu); }
};
template <>
struct Codes<CacheFormat::Int4> {
  static constexpr float kMost = 8.0f;
  static constexpr bool kIsBelow = true;
  static int8_t code(float x) {
    const float rounded = __builtin_rintf(x);
    return static_cast<int8_t>(rounded < 7.0f ? rounded : 7.0f);
  }
};

// Codes of one row and their scale. If a number is not finite the scale is NaN, so that every query
// that sees it gets NaN.
template <CacheFormat kFormat>
inline float quantise(const float* x, int size, int8_t* codes) {
  float most = 0.0f, least = 0.0f;
  bool finite = true;
  for (int i = 0; i < size; ++i) {
    most = x[i] > most ? x[i] : most;
    least = x[i] < least ? x[i] : least;
    finite &= x[i] - x[i] == 0.0f;
  }
  float scale = (most > -least ? most : -least) / Codes<kFormat>::kMost;
  if (!finite) scale = __builtin_nanf("");
  if (scale < 1.17549435e-38f) scale = 0.0f;  // so small that dividing by it would overflow
  const bool useful = scale > 0.0f;
  if (Codes<kFormat>::kIsBelow && most > -least) scale = -scale;
  for (int i = 0; i < size; ++i) codes[i] = useful ? Codes<kFormat>::code(x[i] / scale) : int8_t{0};
  return scale;
}

// Multiplies a row by Hadamard's matrix, of the largest power of two that divides its size, and by
// `factor`. That keeps angles, and spreads a number that is much larger than the others over all of
// them, so that few bits hold them all. With the same of a query, divided by that power of two, the
// sum of products stays as it was.
inline void mix(const float* x, int size, float factor, float* out) {
  const int block = size & -size;
  for (int i = 0; i < size; ++i) out[i] = x[i] * factor;
  for (int half = 1; half < block; half *= 2) {
    for (int first = 0; first < size; first += 2 * half) {
      for (int i = first; i < first + half; ++i) {
        const float one = out[i], other = out[i + half];
        out[i] = one + other;
        out[i + half] = one - other;
      }
    }
  }
}
inline void mix_query(const float* x, int size, float* out) {
  mix(x, size, 1.0f / static_cast<float>(size & -size), out);
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
