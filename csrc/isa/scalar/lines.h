// Lines of codes that stand for floats, one code at a time (kernels/codings.inl).
#pragma once

#include "kernels/coding_tables.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

template <class Coding>
inline void decode_line(const uint8_t* line, uint8_t* pairs) {
  constexpr int kBits = 8 / Coding::kPairs;
  for (int pair = 0; pair < Coding::kPairs; ++pair) {
    for (int output = 0; output < kPanel; ++output) {
      const uint8_t* place = line + place_in_line(output);
      for (int i = 0; i < 2; ++i) {
        const int code = place[i] >> (pair * kBits) & ((1 << kBits) - 1);
        const uint16_t number = Coding::bf16(code);
        __builtin_memcpy(pairs + pair * kPairBytes + output * 4 + i * 2, &number, sizeof number);
      }
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
