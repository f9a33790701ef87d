// Products with bf16 weights: of a single row by BFDOT, which takes two inputs, of several by
// BFMMLA, which takes four.
//
// BFDOT rounds two products and their sum to odd, and adds this to the sum so far, which is rounded
// to odd too; denormal numbers count as zero. BFMMLA does the same with its first two inputs and
// then with its last two, so that both give equal bits.
#pragma once

#include <arm_neon.h>
#include <squares.h>

#include "kernels/gemm_steps.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr const char* kBf16Order = "dot";
constexpr int kBf16Bytes = 2;  // of an input in a prepared row for BF16
constexpr int kBf16Operations = 8;  // of `add_bf16`, a lane: four products and four sums

inline bfloat16x8_t load_pairs(const uint8_t* p) { return vreinterpretq_bf16_u8(vld1q_u8(p)); }

struct StepBF16 {
  static constexpr int kMostRows = 6;  // 24 registers of sums with half of a panel
  static constexpr int kInputs = 2;
  static constexpr int kWeightBytes = kPanel * 4;
  static constexpr int kInputBytes = 4;

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const bfloat16x8_t input = vreinterpretq_bf16_u32(vdupq_n_u32(read_four(x[r] + at)));
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors; ++v) {
        sums[r][v].v = vbfdotq_f32(sums[r][v].v, load_pairs(panel + v * 16), input);
      }
    }
  }

  // All steps of several rows (the piece is gemm_float.inl's). An odd last step is a BFDOT: adding
  // zeros instead could change the sign of a zero.
  template <int Rows, class Piece>
    requires(Rows > 1)
  static void multiply(const Piece& piece) {
    const int even = piece.steps / 2 * 2;
    for (int half = 0; half < 2; ++half) multiply_half<Rows>(piece, half, even / 2);
    if (even == piece.steps) return;
    const uint8_t* panel = piece.panel + even * kWeightBytes;
    for (int r = 0; r < Rows; ++r) {
      const uint8_t* const x[1] = {piece.x + r * piece.x_bytes};
      float* row = piece.sums + r * kPanel;
      Sums<1> sums;
      for (int v = 0; v < kPanelVectors; ++v) {
        sums[0][v] = piece.first && even == 0 ? splat(0.0f) : load(row + v * kLanes);
      }
      add<1>(panel, x, even * kInputBytes, sums);
      for (int v = 0; v < kPanelVectors; ++v) store(row + v * kLanes, sums[0][v]);
    }
  }

 private:
  static constexpr int kVectors = kPanelVectors / 2;

  // The same two outputs of two rows, and the next two: of vectors of one row each, and back.
  struct Squares {
    float32x4_t low, high;
    float32x4_t first_row() const { return firsts(low, high); }
    float32x4_t second_row() const { return seconds(low, high); }
  };
  static float32x4_t firsts(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  static float32x4_t seconds(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }

  // The steps of half of the panel, two at a time. If the number of rows is odd the last one is
  // multiplied twice.
  template <int Rows, class Piece>
  static void multiply_half(const Piece& piece, int half, int twice) {
    constexpr int kPairs = (Rows + 1) / 2;
    const auto row_of = [](int row) { return row < Rows ? row : Rows - 1; };
    const uint8_t* panel = piece.panel + half * kVectors * 16;
    float* to = piece.sums + half * kVectors * kLanes;
    const uint8_t* x[2 * kPairs];
    for (int r = 0; r < 2 * kPairs; ++r) x[r] = piece.x + row_of(r) * piece.x_bytes;
    Squares sums[kPairs][kVectors];
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const float* from = to + v * kLanes;
        const auto row = [&](int r) {
          return piece.first ? vdupq_n_f32(0.0f) : vld1q_f32(from + row_of(r) * kPanel);
        };
        const float32x4_t first = row(2 * p), second = row(2 * p + 1);
        sums[p][v] = {firsts(first, second), seconds(first, second)};
      }
    }
    const uint8_t* ahead = piece.ahead + half * piece.ahead_bytes;
    for (int i = 0; i < twice; ++i) {
      prefetch(ahead);
      prefetch(ahead + 64);
      bfloat16x8_t inputs[kPairs];
#pragma GCC unroll 8
      for (int p = 0; p < kPairs; ++p) {
        inputs[p] = vreinterpretq_bf16_u8(two_rows(x[2 * p] + i * 8, x[2 * p + 1] + i * 8));
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const FourOutputs weights =
            four_outputs(vld1q_u8(panel + v * 16), vld1q_u8(panel + kWeightBytes + v * 16));
        const bfloat16x8_t low = vreinterpretq_bf16_u8(weights.low);
        const bfloat16x8_t high = vreinterpretq_bf16_u8(weights.high);
#pragma GCC unroll 8
        for (int p = 0; p < kPairs; ++p) {
          sums[p][v].low = vbfmmlaq_f32(sums[p][v].low, inputs[p], low);
          sums[p][v].high = vbfmmlaq_f32(sums[p][v].high, inputs[p], high);
        }
      }
      panel += 2 * kWeightBytes;
      ahead += 2 * piece.ahead_bytes;
    }
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        float* at = to + 2 * p * kPanel + v * kLanes;
        vst1q_f32(at, sums[p][v].first_row());
        if (2 * p + 1 < Rows) vst1q_f32(at + kPanel, sums[p][v].second_row());
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
  return {vbfmmlaq_f32(sum.v, pairs, pairs)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
