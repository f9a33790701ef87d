// Products with bf16 weights where no instruction multiplies them: they are widened to fp32.
// Prepared rows hold fp32 numbers that were rounded to bf16.
#pragma once

#include "kernels/gemm_steps.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr const char* kBf16Order = "fma";
constexpr int kBf16Bytes = 4;  // of an input in a prepared row for BF16
constexpr int kBf16Operations = 2;  // of `add_bf16`, a lane: a product and a sum

struct StepBF16 {
  static constexpr int kMostRows = kWidenedRows;
  static constexpr int kInputs = 2;
  static constexpr int kWeightBytes = kPanel * 4;
  static constexpr int kInputBytes = 8;

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    add_input<Rows>([panel](int v) { return load_bf16<0>(panel + v * kLanes * 4); }, x, at,
                    sums);
    // Without this the compiler keeps the loaded pairs in registers that are needed for sums.
    if constexpr (kWidenedRows < kMaxRows) __asm__ volatile("" ::: "memory");
    add_input<Rows>([panel](int v) { return load_bf16<1>(panel + v * kLanes * 4); }, x, at + 4,
                    sums);
  }
};

// Rounds an fp32 row to bf16. `out` is filled with zeros.
void prepare_bf16_row(const float* x, int inputs, uint8_t* out) {
  for (int i = 0; i < inputs; ++i) {
    const float rounded = bf16_to_float(float_to_bf16(x[i]));
    __builtin_memcpy(out + i * 4, &rounded, sizeof rounded);
  }
}

// Adds a product, for peak_rates.inl.
inline Floats add_bf16(Floats sum, const uint8_t*) {
  return fma(sum, splat(0.5f), splat(0.5f));
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
