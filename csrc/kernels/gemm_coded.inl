// Products of bf16 activations with panels of codes that stand for floats.
//
// For each group of inputs in order: the sum of the products as gemm_float.inl adds them up, from
// zero, and then total = fma(sum, scale, total). With few rows the pairs of a line are multiplied
// as soon as they are decoded; with more, some groups are decoded once for all rows of a block.
#pragma once

#include "kernels/bytes.h"
#include "kernels/codings.inl"
#include "kernels/gemm_float.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Rows for which codes are decoded once: twice as many as share a panel of floats.
constexpr int kCodedRows = 2 * kRowBlock;

// Decoded weights that all rows use before the next ones: with inputs of rows they stay in the L1.
constexpr int kDecodedBytes = 32 * 1024;
constexpr int kDecodedInputs = kDecodedBytes / kPairBytes * 2;

// More rows would leave no registers for decoding.
constexpr int kMostFused = StepBF16::kMostRows < 4 ? StepBF16::kMostRows : 4;

// A step over a line of codes.
template <class Coding>
struct StepCoded {
  static constexpr int kWeightBytes = kCodeLine;
  static constexpr int kInputBytes = Coding::kPairs * StepBF16::kInputBytes;

  template <int Rows>
  OCTAVO_INLINE static void add(const uint8_t* line, const uint8_t* const (&x)[Rows], size_t at,
                                Sums<Rows>& sums) {
    alignas(kAlign) uint8_t pairs[Coding::kPairs * kPairBytes];
    decode_line<Coding>(line, pairs);
#pragma GCC unroll 2
    for (int p = 0; p < Coding::kPairs; ++p) {
      StepBF16::template add<Rows>(pairs + p * kPairBytes, x, at + p * StepBF16::kInputBytes, sums);
    }
  }
};

// The operands of one call: groups [first, end) of a panel, whose weights `of` finds.
struct CodedPiece {
  int first, end;
  const uint8_t* x;      // the first row's inputs of group `first`
  size_t x_bytes;        // from row to row
  size_t group_bytes;    // of a row's inputs
  float* totals;         // [rows][32]
  const uint8_t* ahead;  // memory to prefetch, ahead_bytes further with each step
  int ahead_bytes;
  int ahead_gap;         // and between groups, where their scales lie
};

template <class Step, int Rows, class Coding, class Weights>
__attribute__((noinline)) void multiply_groups(const CodedPanel<Coding>& panel,
                                               const CodedPiece& piece, Weights weights_of) {
  const uint8_t* x[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) x[r] = piece.x + r * piece.x_bytes;
  const uint8_t* ahead = piece.ahead;
  size_t at = 0;
  for (int group = piece.first; group < piece.end; ++group) {
    Sums<Rows> sums;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 32
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = splat(0.0f);
    }
    const uint8_t* weights = weights_of(group);
    for (const size_t end = at + piece.group_bytes; at < end; at += Step::kInputBytes) {
      prefetch(ahead);
      ahead += piece.ahead_bytes;
      Step::template add<Rows>(weights, x, at, sums);
      weights += Step::kWeightBytes;
    }
    ahead += piece.ahead_gap;
#pragma GCC unroll 32
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats scale = panel.scale(group, v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        float* total = piece.totals + r * kPanel + v * kLanes;
        store(total, fma(sums[r][v], scale, load(total)));
      }
    }
  }
}

template <class Step, int Rows, class Coding, class Weights>
void multiply_groups_of(int rows, const CodedPanel<Coding>& panel, const CodedPiece& piece,
                        Weights weights_of) {
  if constexpr (Rows > 1) {
    if (rows < Rows) {
      return multiply_groups_of<Step, Rows - 1>(rows, panel, piece, weights_of);
    }
  }
  multiply_groups<Step, Rows>(panel, piece, weights_of);
}

// A panel's products with few rows.
template <class Coding>
void multiply_fused(const CodedPanel<Coding>& panel, CodedPiece piece, int rows, int ahead) {
  piece.ahead = panel.codes(0) + ahead;
  piece.ahead_bytes = ahead ? kCodeLine : 0;
  piece.ahead_gap = ahead ? panel.layout.scale_bytes / panel.layout.span : 0;
  multiply_groups_of<StepCoded<Coding>, kMostFused>(
      rows, panel, piece, [&](int group) { return panel.codes(group); });
}

// A panel's products with many rows. While they run, the codes that are decoded next are
// prefetched, a share in each pass.
template <class Coding>
void multiply_decoded(const CodedPanel<Coding>& panel, const CodedPiece& whole, int rows,
                      uint8_t* decoded) {
  const size_t pairs_bytes = static_cast<size_t>(panel.layout.group) / 2 * kPairBytes;
  const int together = kDecodedInputs / panel.layout.group;
  const int passes = (rows + StepBF16::kMostRows - 1) / StepBF16::kMostRows;
  for (int first = 0; first < whole.end; first += together) {
    CodedPiece piece = whole;
    piece.first = first;
    piece.end = whole.end - first < together ? whole.end : first + together;
    for (int group = first; group < piece.end; ++group) {
      panel.decode(group, decoded + (group - first) * pairs_bytes);
    }
    const int steps = (piece.end - first) * panel.layout.group / StepBF16::kInputs;
    piece.ahead_bytes = kCodeLine / Coding::kPairs / passes;
    for (int pass = 0; pass < passes; ++pass) {
      const int row = part_begin(rows, passes, pass);
      piece.x = whole.x + row * whole.x_bytes + first * whole.group_bytes;
      piece.totals = whole.totals + row * kPanel;
      piece.ahead = panel.scales(piece.end) + static_cast<size_t>(pass) * steps * piece.ahead_bytes;
      multiply_groups_of<StepBF16, StepBF16::kMostRows>(
          part_begin(rows, passes, pass + 1) - row, panel, piece,
          [&](int group) { return decoded + (group - first) * pairs_bytes; });
    }
  }
}

// ---- the format's part of the table ----

inline size_t coded_gemm_scratch() { return sizeof(float) * kCodedRows * kPanel + kDecodedBytes; }

template <class Coding>
void multiply_coded(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                    int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  float* totals = reinterpret_cast<float*>(scratch);
  uint8_t* decoded = scratch + sizeof(float) * kCodedRows * kPanel;
  const size_t x_bytes = float_prepared_bytes(Format::BF16, matrix.inputs);
  const int blocks = (rows + kCodedRows - 1) / kCodedRows;
  for (int b = 0; b < blocks; ++b) {
    const int begin = part_begin(rows, blocks, b);
    const int count = part_begin(rows, blocks, b + 1) - begin;
    for (int p = first_panel; p < end_panel; ++p) {
      const CodedPanel<Coding> panel = coded_panel<Coding>(matrix, p);
      __builtin_memset(totals, 0, sizeof(float) * kPanel * count);
      ask_for_tile(matrix, epilogue, begin, count, p);
      CodedPiece piece{};
      piece.end = matrix.inputs / panel.layout.group;
      piece.x = prepared + begin * x_bytes;
      piece.x_bytes = x_bytes;
      piece.group_bytes = static_cast<size_t>(panel.layout.group) * kBf16Bytes;
      piece.totals = totals;
      if (count <= kMostFused) {
        multiply_fused(panel, piece, count, ahead);
      } else {
        multiply_decoded(panel, piece, count, decoded);
      }
      finish_tile(matrix, epilogue, begin, count, p, totals);
    }
  }
}

inline void gemm_coded(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                       int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  with_coding(matrix.format, [&](auto coding) {
    multiply_coded<decltype(coding)>(matrix, prepared, rows, first_panel, end_panel, scratch,
                                     epilogue, ahead);
  });
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
