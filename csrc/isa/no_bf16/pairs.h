// Pairs of bf16 numbers where no instruction multiplies them: two vectors of floats each.
#pragma once

#include <vectors.h>

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

constexpr bool kDotsPairs = false;
using Bf16Pairs = Two;

inline Bf16Pairs as_read(Ints pairs) { return widen(pairs); }

template <bool kHalf>
inline Bf16Pairs read_codes(const int8_t* from) {
  const Ints pairs = read_code_pairs<kHalf>(from);
  return {__builtin_convertvector(pairs << 16 >> 16, Floats),
          __builtin_convertvector(pairs >> 16, Floats)};
}

// As floats, codes lack only the difference of the exponents' biases.
template <bool kHalf, int kMantissa>
inline Bf16Pairs read_float8(const int8_t* from) {
  constexpr int kShift = 23 - kMantissa;
  const Floats unit = splat(kMantissa == 3 ? 0x1p120f : 0x1p112f);
  const Ints pairs = read_code_pairs<kHalf>(from), odd = pairs << (kShift - 16);
  const Ints even = pairs << kShift;
  const Ints sizes[2] = {even & (0x7F << kShift), odd & (0x7F << kShift)};
  const Ints signs[2] = {pairs << 16 & INT32_MIN, pairs & INT32_MIN};
  return {floats_of(bits_of(floats_of(sizes[0]) * unit) | signs[0]),
          floats_of(bits_of(floats_of(sizes[1]) * unit) | signs[1])};
}

template <bool kHalf>
inline Bf16Pairs read_code_halves(const uint8_t* from) {
  const Ints bytes = read_bytes<kHalf>(from);
  return {__builtin_convertvector(bytes << 28 >> 28, Floats),
          __builtin_convertvector(bytes << 24 >> 28, Floats)};
}

template <bool kPairs>
inline void store_weights(float* row, int at, Floats weights) {
  store(row + at, weights);
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
