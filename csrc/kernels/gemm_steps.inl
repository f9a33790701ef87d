// One step of a product's loop over the inputs, for F32 and F16 weights, and the parts from which
// each tier's bf16.h builds the steps for bf16 weights.
#pragma once

#include <sizes.h>

#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline float input_at(const uint8_t* x) {
  float value;
  __builtin_memcpy(&value, x, sizeof value);
  return value;
}

template <int Rows>
using Sums = Floats[Rows][kPanelVectors];

// One input of each row times its weights, which `weights(vector)` returns as fp32. The registers
// hold either the weights (kKeepsWeights) or the inputs, which are then loaded once.
template <int Rows, class Weights>
inline void add_input(Weights weights, const uint8_t* const (&x)[Rows], size_t at,
                      Sums<Rows>& sums) {
  if constexpr (kKeepsWeights) {
    const Floats w[2] = {weights(0), weights(1)};
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Floats input = splat(input_at(x[r] + at));
      sums[r][0] = fma(w[0], input, sums[r][0]);
      sums[r][1] = fma(w[1], input, sums[r][1]);
    }
  } else {
    Floats input[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) input[r] = splat(input_at(x[r] + at));
#pragma GCC unroll 32
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats w = weights(v);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) sums[r][v] = fma(w, input[r], sums[r][v]);
    }
  }
}

struct StepF32 {
  static constexpr int kMostRows = kMaxRows;
  static constexpr int kInputs = 1;
  static constexpr int kWeightBytes = kPanel * 4;
  static constexpr int kInputBytes = 4;

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    const float* row = reinterpret_cast<const float*>(panel);
    add_input<Rows>([row](int v) { return load(row + v * kLanes); }, x, at, sums);
  }
};

struct StepF16 {
  static constexpr int kMostRows = kMaxRows;
  static constexpr int kInputs = 1;
  static constexpr int kWeightBytes = kPanel * 2;
  static constexpr int kInputBytes = 4;

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    const uint16_t* row = reinterpret_cast<const uint16_t*>(panel);
    add_input<Rows>([row](int v) { return load_half(row + v * kLanes); }, x, at, sums);
  }
};

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
