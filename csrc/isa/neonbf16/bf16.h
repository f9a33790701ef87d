// Products with bf16 weights by BFDOT, which takes pairs of inputs.
#pragma once

#include <arm_neon.h>

#include "kernels/gemm_steps.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr const char* kBf16Order = "dot";
constexpr int kBf16Bytes = 2;  // of an input in a prepared row for BF16
constexpr int kBf16Operations = 4;  // of `add_bf16`, a lane: two products and two sums

inline bfloat16x8_t load_pairs(const uint8_t* p) { return vreinterpretq_bf16_u8(vld1q_u8(p)); }

struct StepBF16 {
  static constexpr int kMostRows = kMaxRows;
  static constexpr int kInputs = 2;
  static constexpr int kWeightBytes = kPanel * 4;
  static constexpr int kInputBytes = 4;

  static bfloat16x8_t pair(const uint8_t* x) {
    uint32_t bits;
    __builtin_memcpy(&bits, x, sizeof bits);
    return vreinterpretq_bf16_u32(vdupq_n_u32(bits));
  }

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    bfloat16x8_t input[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) input[r] = pair(x[r] + at);
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVectors; ++v) {
      const bfloat16x8_t weights = load_pairs(panel + v * 16);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        sums[r][v].v = vbfdotq_f32(sums[r][v].v, weights, input[r]);
      }
    }
  }
};

// Rounds an fp32 row to bf16. `out` is filled with zeros.
void prepare_bf16_row(const float* x, int inputs, uint8_t* out) {
  int i = 0;
  for (; i + kLanes <= inputs; i += kLanes) {
    vst1_u8(out + i * 2, vreinterpret_u8_bf16(vcvt_bf16_f32(vld1q_f32(x + i))));
  }
  for (; i < inputs; ++i) {
    const uint16_t rounded = float_to_bf16(x[i]);
    __builtin_memcpy(out + i * 2, &rounded, sizeof rounded);
  }
}

// Adds a product of `factors`, for peak_rates.inl.
inline Floats add_bf16(Floats sum, const uint8_t* factors) {
  const bfloat16x8_t pairs = load_pairs(factors);
  return {vbfdotq_f32(sum.v, pairs, pairs)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
