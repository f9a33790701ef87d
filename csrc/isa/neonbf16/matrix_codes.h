// Products of int8 activations with panels of codes by USMMLA, for two rows and more: the sums of
// gemm_quantized.inl with the same bits, since integers are exact.
#pragma once

#include <arm_neon.h>
#include <squares.h>

#include "kernels/gemm_quantized.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kSquareVectors = 2;  // of outputs that pass together

// The integer sums of two rows with four outputs: each register has those of two outputs.
struct IntegerSquares {
  int32x4_t low, high;
  Integers first_row() const { return {vuzp1q_s32(low, high)}; }
  Integers second_row() const { return {vuzp2q_s32(low, high)}; }
};

// The steps of a part of a group, two at a time.
template <Format format, int pairs, int step, int end>
OCTAVO_INLINE void square_steps(IntegerSquares (&sums)[pairs][kSquareVectors],
                                const Variant& variant, const uint8_t* codes,
                                const uint8_t* group, size_t ahead,
                                const uint8_t* const (&x)[2 * pairs]) {
  if constexpr (step < end) {
    if (ahead) {
      ask<format, step>(group, ahead);
      ask<format, step + 1>(group, ahead);
    }
    FourOutputs weights[kSquareVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kSquareVectors; v++) {
      const uint8_t* from = codes + v * kLanes * 4;
      weights[v] = four_outputs(decode<format, step>(from, variant).v,
                                decode<format, step + 1>(from, variant).v);
    }
#pragma GCC unroll 8
    for (int p = 0; p < pairs; p++) {
      const int8x16_t inputs =
          vreinterpretq_s8_u8(two_rows(x[2 * p] + step * 4, x[2 * p + 1] + step * 4));
#pragma GCC unroll 8
      for (int v = 0; v < kSquareVectors; v++) {
        sums[p][v].low = vusmmlaq_s32(sums[p][v].low, weights[v].low, inputs);
        sums[p][v].high = vusmmlaq_s32(sums[p][v].high, weights[v].high, inputs);
      }
    }
    square_steps<format, pairs, step + 2, end>(sums, variant, codes, group, ahead, x);
  }
}

// As add_part of gemm_quantized.inl. If the number of rows is odd the last one is multiplied twice.
template <Format format, int rows, int part>
OCTAVO_INLINE void add_square_part(Floats (&sums)[rows][kSquareVectors], const Variant& variant,
                                   Place at, int first, const uint8_t* codes, size_t ahead,
                                   const uint8_t* x, size_t x_stride) {
  constexpr int kPairs = (rows + 1) / 2, kPartSteps = kSteps / layout_of(format).parts;
  const uint8_t* x_of[2 * kPairs];
#pragma GCC unroll 8
  for (int r = 0; r < 2 * kPairs; r++) x_of[r] = x + (r < rows ? r : rows - 1) * x_stride;
  IntegerSquares squares[kPairs][kSquareVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; p++) {
    const int32x4_t both = vzip1q_s32(start<format>(x_of[2 * p], part).v,
                                      start<format>(x_of[2 * p + 1], part).v);
#pragma GCC unroll 8
    for (int v = 0; v < kSquareVectors; v++) squares[p][v] = {both, both};
  }
  square_steps<format, kPairs, part * kPartSteps, (part + 1) * kPartSteps>(
      squares, variant, codes, at.header + at.group * group_bytes(format), ahead, x_of);
#pragma GCC unroll 8
  for (int v = 0; v < kSquareVectors; v++) {
    const Floats scale = load_scale<format>(variant, at, part, first + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const IntegerSquares& pair = squares[r / 2][v];
      const Integers dots = r % 2 ? pair.second_row() : pair.first_row();
      const Floats product = to_floats(dots) * splat(read_float(x_of[r] + kPreparedScale));
      sums[r][v] = fma(product, scale, sums[r][v]);
    }
  }
}

// As add_groups of gemm_quantized.inl.
template <Format format, int rows>
  requires(rows > 1)
void Codes::add_groups(const uint8_t* weights, const Variant& variant, size_t ahead,
                       const uint8_t* x, size_t x_stride, int groups, float* tile) {
  constexpr GroupLayout kLayout = layout_of(format);
  const int span = has_several_spans(format) ? variant.span : kLayout.span;
  for (int first = 0; first < kPanel; first += kSquareVectors * kLanes) {
    Floats sums[rows][kSquareVectors];
    for (auto& row : sums) row[0] = row[1] = splat(0.0f);
    const uint8_t* codes = weights + first * 4;
    const uint8_t* row = x;
    for (int begin = 0; begin < groups; begin += span) {
      Place at{codes - first * 4, 0};
      codes += kLayout.header_bytes;
      const int end = groups - begin < span ? groups - begin : span;
      do {
        add_square_part<format, rows, 0>(sums, variant, at, first, codes, ahead, row, x_stride);
        if constexpr (kLayout.minima) {
          add_minima<format, rows, kSquareVectors>(sums, at, 0, first, row, x_stride);
        }
        if constexpr (kLayout.parts == 2) {
          add_square_part<format, rows, 1>(sums, variant, at, first, codes, ahead, row, x_stride);
          if constexpr (kLayout.minima) {
            add_minima<format, rows, kSquareVectors>(sums, at, 1, first, row, x_stride);
          }
        }
        codes += kLayout.code_bytes;
        row += kPreparedGroup;
      } while (++at.group < end);
    }
    for (int r = 0; r < rows; r++) {
      for (int v = 0; v < kSquareVectors; v++) {
        store(tile + r * kPanel + first + v * kLanes, sums[r][v]);
      }
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
