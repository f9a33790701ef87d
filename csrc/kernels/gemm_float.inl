// Products with F32, F16 and BF16 matrices.
//
// Panels: F32 and F16 [inputs][32]; BF16 [inputs / 2][32][2], pairs of inputs side by side as
// `vdpbf16ps` takes them, with a zero beside an odd last input. One accumulator per output runs
// over the inputs in their order, so a row's bits do not depend on the rows beside it. Tiers that
// have no bf16 product widen the weights and use fma; they keep prepared rows as fp32 numbers that
// were rounded to bf16.
#pragma once

#include <bf16.h>

#include "kernels/epilogue.inl"
#include "kernels/gemm_steps.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Rows whose sums are kept until a panel is done: their inputs stay in L2 while panels pass.
constexpr int kRowBlock = 96;

// Bytes of a panel that pass before the next rows pass them again: a quarter of a usual L2.
constexpr int kChunkBytes = 256 * 1024;

// ---- rows by panels ----

// The operands of one call of a kernel.
struct Piece {
  const uint8_t* panel;  // the first step's weights
  const uint8_t* x;      // the first row's input at that step
  size_t x_bytes;        // from row to row
  int steps;
  bool first;            // sums begin at zero; otherwise they are continued
  float* sums;           // [rows][32]
  const uint8_t* ahead;  // memory to prefetch, ahead_bytes further with each step; 0: none
  int ahead_bytes;
};

template <class Step, int Rows, bool kAsks>
void multiply_rows(const Piece& piece) {
  Sums<Rows> sums;
  const uint8_t* x[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    x[r] = piece.x + r * piece.x_bytes;
#pragma GCC unroll 32
    for (int v = 0; v < kPanelVectors; ++v) {
      sums[r][v] = piece.first ? splat(0.0f) : load(piece.sums + r * kPanel + v * kLanes);
    }
  }
  const uint8_t* panel = piece.panel;
  const uint8_t* ahead = piece.ahead;
  const size_t end = static_cast<size_t>(piece.steps) * Step::kInputBytes;
  for (size_t at = 0; at < end; at += Step::kInputBytes) {
    if constexpr (kAsks) {
      prefetch(ahead);
      if constexpr (Step::kWeightBytes > 64) prefetch(ahead + 64);
    }
    Step::template add<Rows>(panel, x, at, sums);
    panel += Step::kWeightBytes;
    ahead += piece.ahead_bytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 32
    for (int v = 0; v < kPanelVectors; ++v) {
      store(piece.sums + r * kPanel + v * kLanes, sums[r][v]);
    }
  }
}

template <class Step, int Rows = Step::kMostRows>
void multiply_some_rows(int rows, const Piece& piece) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return multiply_some_rows<Step, Rows - 1>(rows, piece);
  }
  // With so many rows, as the smallest of several even parts has, the instructions cost nothing.
  constexpr bool kMany = Rows * 2 >= Step::kMostRows;
  if constexpr (requires { Step::template multiply<Rows>(piece); }) {
    Step::template multiply<Rows>(piece);  // a tier's own, with equal bits
  } else if (kMany || piece.ahead_bytes != 0) {
    multiply_rows<Step, Rows, true>(piece);
  } else {
    multiply_rows<Step, Rows, false>(piece);
  }
}

// One panel for up to kRowBlock rows, summed into `sums`. If the panel is read once, the prefetched
// memory is `ahead` bytes further on in it; otherwise it is the next panel, a share in each pass.
// `ask(first, count)` is called before each run of rows, to prefetch their outputs.
template <class Step, class Ask>
void multiply_panel(const uint8_t* panel, size_t panel_bytes, const uint8_t* x, size_t x_bytes,
                    int rows, int steps, int ahead, float* sums, Ask ask) {
  constexpr int kChunk = kChunkBytes / Step::kWeightBytes;
  const int groups = (rows + Step::kMostRows - 1) / Step::kMostRows;
  for (int step = 0; step < steps; step += kChunk) {
    const uint8_t* weights = panel + static_cast<size_t>(step) * Step::kWeightBytes;
    const int count = steps - step < kChunk ? steps - step : kChunk;
    for (int g = 0; g < groups; ++g) {
      const int begin = part_begin(rows, groups, g);
      if (step == 0) ask(begin, part_begin(rows, groups, g + 1) - begin);
      Piece piece;
      piece.panel = weights;
      piece.x = x + begin * x_bytes + static_cast<size_t>(step) * Step::kInputBytes;
      piece.x_bytes = x_bytes;
      piece.steps = count;
      piece.first = step == 0;
      piece.sums = sums + begin * kPanel;
      const bool waits = groups == 1 && ahead == 0;
      piece.ahead_bytes = waits ? 0 : Step::kWeightBytes / groups;
      piece.ahead = weights;
      if (groups > 1) {
        piece.ahead += panel_bytes + static_cast<size_t>(g) * count * piece.ahead_bytes;
      } else if (!waits) {
        piece.ahead += ahead;
      }
      multiply_some_rows<Step>(part_begin(rows, groups, g + 1) - begin, piece);
    }
  }
}

size_t float_prepared_bytes(Format format, int inputs) {
  const size_t bytes = static_cast<size_t>(inputs + inputs % 2) *
                       (format == Format::BF16 ? kBf16Bytes : 4);
  // An odd number of lines: rows a power of two apart would all map to one set of the L1.
  return ((bytes + kAlign - 1) / kAlign | 1) * kAlign;
}

template <class Step>
void multiply(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
              int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  float* sums = reinterpret_cast<float*>(scratch);
  const size_t x_bytes = float_prepared_bytes(matrix.format, matrix.inputs);
  const int steps = (matrix.inputs + Step::kInputs - 1) / Step::kInputs;
  const int blocks = (rows + kRowBlock - 1) / kRowBlock;
  for (int b = 0; b < blocks; ++b) {
    const int begin = part_begin(rows, blocks, b);
    const int count = part_begin(rows, blocks, b + 1) - begin;
    for (int panel = first_panel; panel < end_panel; ++panel) {
      multiply_panel<Step>(
          matrix.data + panel * matrix.panel_bytes, matrix.panel_bytes, prepared + begin * x_bytes,
          x_bytes, count, steps, ahead, sums, [&](int first, int some) {
            ask_for_tile(matrix, epilogue, begin + first, some, panel);
          });
      finish_tile(matrix, epilogue, begin, count, panel, sums);
    }
  }
}

// ---- the format's part of the table ----

inline size_t float_gemm_scratch() { return sizeof(float) * kRowBlock * kPanel; }

inline void float_prepare(Format format, const float* x, size_t x_stride, int rows, int inputs,
                          uint8_t* prepared) {
  const size_t row_bytes = float_prepared_bytes(format, inputs);
  for (int r = 0; r < rows; ++r) {
    uint8_t* out = prepared + r * row_bytes;
    const float* row = x + r * x_stride;
    const size_t used = static_cast<size_t>(inputs) * (format == Format::BF16 ? kBf16Bytes : 4);
    __builtin_memset(out + used, 0, row_bytes - used);
    if (format == Format::BF16) {
      prepare_bf16_row(row, inputs, out);
    } else {
      __builtin_memcpy(out, row, used);
    }
  }
}

inline void float_unpack_row(const Matrix& matrix, int output, float* out) {
  const uint8_t* panel = matrix.data + output / kPanel * matrix.panel_bytes;
  const int column = output % kPanel;
  for (int i = 0; i < matrix.inputs; ++i) {
    if (matrix.format == Format::F32) {
      out[i] = reinterpret_cast<const float*>(panel)[i * kPanel + column];
    } else if (matrix.format == Format::F16) {
      out[i] = half_to_float(reinterpret_cast<const uint16_t*>(panel)[i * kPanel + column]);
    } else {
      const int pair = i / 2 * kPanel + column;
      out[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(panel)[pair * 2 + i % 2]);
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
