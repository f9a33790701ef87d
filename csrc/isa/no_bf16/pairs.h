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

template <bool kPairs>
inline void store_weights(float* row, int at, Floats weights) {
  store(row + at, weights);
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
