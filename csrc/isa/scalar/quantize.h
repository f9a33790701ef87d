// Quantised activations in plain C++ (kernels/quantize.inl).
#pragma once

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline uint32_t largest_magnitude(const float* x) {
  uint32_t most = 0;
  for (int i = 0; i < kGroup; i++) {
    const uint32_t bits = float_to_bits(x[i]) & 0x7FFFFFFFu;
    if (bits > most) most = bits;
  }
  return most;
}

inline Halves store_codes(const Floats (&codes)[kGroup], uint8_t* out) {
  int32_t sums[2] = {0, 0};
  for (int i = 0; i < kGroup; i++) {
    const int32_t code = static_cast<int32_t>(codes[i].v);
    out[i] = static_cast<uint8_t>(code);
    sums[i / 16] += code;
  }
  return {sums[0], sums[1]};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
