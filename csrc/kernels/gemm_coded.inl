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

// Decoded weights that all rows use before the next ones, and their groups' scales.
constexpr int kDecodedBytes = 32 * 1024;
constexpr int kDecodedInputs = kDecodedBytes / kPairBytes * 2;
constexpr int kLeastCodedGroup = 16;
constexpr int kMostDecodedGroups = kDecodedInputs / kLeastCodedGroup;
// Steps between two branches: a whole number of times in any group.
constexpr int kDecodedRun = kLeastCodedGroup / StepBF16::kInputs;

// Whether the totals of decoded groups stay in registers too, beside half as many rows' sums:
// otherwise all totals are read and written for each group, which may have 16 inputs.
constexpr bool kKeepsTotals = StepBF16::kMostRows >= 12;
constexpr int kDecodedRows = kKeepsTotals ? StepBF16::kMostRows / 2 : StepBF16::kMostRows;

// Rows that are multiplied as lines are decoded. More would leave no registers for decoding.
constexpr int kFusedRows = StepBF16::kMostRows < 4 ? StepBF16::kMostRows : 4;
// From how many rows on groups are decoded apart. A line of two pairs may be decoded for some rows
// and again for the others: up to three times that took less time (Zen 4) than decoding it apart.
template <class Coding>
constexpr int kFewestDecoded = (kKeepsTotals && Coding::kPairs == 2 ? 3 : 1) * kFusedRows + 1;

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

// The operands of one call: groups [first, end) of a panel.
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

// Groups of a panel as they are stored.
template <class Coding>
struct StoredGroups {
  CodedPanel<Coding> panel;
  const uint8_t* weights(int group) const { return panel.codes(group); }
  Floats scale(int group, int output) const { return panel.scale(group, output); }
};

// Groups of a panel that are decoded, from `first` on.
struct DecodedGroups {
  uint8_t* pairs;
  float* scales;
  size_t pairs_bytes;  // of a group
  int first = 0;
  uint8_t* weights(int group) const { return pairs + (group - first) * pairs_bytes; }
  float* scale_at(int group) const { return scales + (group - first) * kPanel; }
  Floats scale(int group, int output) const { return load(scale_at(group) + output); }
};

// Where some rows have their next inputs. Three rows share a pointer, so that all pointers stay in
// registers; the compiler would keep one for each row, and some of them elsewhere.
template <int Rows>
class RowsOfInputs {
 public:
  OCTAVO_INLINE RowsOfInputs(const uint8_t* first, size_t row_bytes) : row_bytes_(row_bytes) {
#pragma GCC unroll 16
    for (int i = 0; i < kPointers; ++i) pointers_[i] = first + i * 3 * row_bytes;
    pass(0);
  }
  OCTAVO_INLINE void find(const uint8_t* (&x)[Rows]) const {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) x[r] = pointers_[r / 3] + r % 3 * row_bytes_;
  }
  OCTAVO_INLINE void pass(size_t bytes) {
#pragma GCC unroll 16
    for (int i = 0; i < kPointers; ++i) {
      pointers_[i] += bytes;
      asm volatile("" : "+r"(pointers_[i]));
    }
  }

 private:
  static constexpr int kPointers = (Rows + 2) / 3;
  const uint8_t* pointers_[kPointers];
  size_t row_bytes_;
};

// With kKeeps totals stay in registers. kRun steps, of which a group has a whole number of times as
// many, lie between two branches.
template <class Step, int Rows, bool kKeeps, int kRun, class Groups>
__attribute__((noinline)) void multiply_groups(const Groups& groups, const CodedPiece& piece) {
  RowsOfInputs<Rows> inputs(piece.x, piece.x_bytes);
  Sums<Rows> totals;
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 32
    for (int v = 0; kKeeps && v < kPanelVectors; ++v) {
      totals[r][v] = load(piece.totals + r * kPanel + v * kLanes);
    }
  }
  float* const stored = piece.totals;
  const uint8_t* ahead = piece.ahead;
  for (int group = piece.first; group < piece.end; ++group) {
    Sums<Rows> sums;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 32
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = splat(0.0f);
    }
    const uint8_t* weights = groups.weights(group);
    const uint8_t* end = weights + piece.group_bytes / Step::kInputBytes * Step::kWeightBytes;
    while (weights < end) {
      const uint8_t* x[Rows];
      inputs.find(x);
#pragma GCC unroll 8
      for (int step = 0; step < kRun; ++step) {
        prefetch(ahead);
        ahead += piece.ahead_bytes;
        Step::template add<Rows>(weights, x, step * Step::kInputBytes, sums);
        weights += Step::kWeightBytes;
      }
      inputs.pass(kRun * Step::kInputBytes);
    }
    ahead += piece.ahead_gap;
#pragma GCC unroll 32
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats scale = groups.scale(group, v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        if constexpr (kKeeps) {
          totals[r][v] = fma(sums[r][v], scale, totals[r][v]);
        } else {
          float* total = stored + r * kPanel + v * kLanes;
          store(total, fma(sums[r][v], scale, load(total)));
        }
      }
    }
  }
  if constexpr (kKeeps) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 32
      for (int v = 0; v < kPanelVectors; ++v) {
        store(piece.totals + r * kPanel + v * kLanes, totals[r][v]);
      }
    }
  }
}

template <class Step, int Rows, bool kKeeps, int kRun, class Groups>
void multiply_groups_of(int rows, const Groups& groups, const CodedPiece& piece) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return multiply_groups_of<Step, Rows - 1, kKeeps, kRun>(rows, groups, piece);
  }
  multiply_groups<Step, Rows, kKeeps, kRun>(groups, piece);
}

// A panel's products with few rows. The first pass prefetches.
template <class Coding>
void multiply_fused(const CodedPanel<Coding>& panel, const CodedPiece& whole, int rows, int ahead) {
  const int passes = (rows + kFusedRows - 1) / kFusedRows;
  for (int pass = 0; pass < passes; ++pass) {
    const int row = part_begin(rows, passes, pass);
    const bool asks = ahead && pass == 0;
    CodedPiece piece = whole;
    piece.x = whole.x + row * whole.x_bytes;
    piece.totals = whole.totals + row * kPanel;
    piece.ahead = panel.codes(0) + ahead;
    piece.ahead_bytes = asks ? kCodeLine : 0;
    piece.ahead_gap = asks ? panel.layout.scale_bytes / panel.layout.span : 0;
    multiply_groups_of<StepCoded<Coding>, kFusedRows, false, 1>(
        part_begin(rows, passes, pass + 1) - row, StoredGroups<Coding>{panel}, piece);
  }
}

// A panel's products with many rows. While they run, the codes that are decoded next are
// prefetched, a share in each pass.
template <class Coding>
void multiply_decoded(const CodedPanel<Coding>& panel, const CodedPiece& whole, int rows,
                      uint8_t* scratch) {
  const size_t pairs_bytes = static_cast<size_t>(panel.layout.group) / 2 * kPairBytes;
  DecodedGroups decoded{scratch, reinterpret_cast<float*>(scratch + kDecodedBytes), pairs_bytes};
  const int together = kDecodedInputs / panel.layout.group;
  const int passes = (rows + kDecodedRows - 1) / kDecodedRows;
  for (int first = 0; first < whole.end; first += together) {
    CodedPiece piece = whole;
    piece.first = decoded.first = first;
    piece.end = whole.end - first < together ? whole.end : first + together;
    for (int group = first; group < piece.end; ++group) {
      panel.decode(group, decoded.weights(group));
      for (int output = 0; output < kPanel; output += kLanes) {
        store(decoded.scale_at(group) + output, panel.scale(group, output));
      }
    }
    const int steps = (piece.end - first) * panel.layout.group / StepBF16::kInputs;
    piece.ahead_bytes = kCodeLine / Coding::kPairs / passes;
    for (int pass = 0; pass < passes; ++pass) {
      const int row = part_begin(rows, passes, pass);
      piece.x = whole.x + row * whole.x_bytes + first * whole.group_bytes;
      piece.totals = whole.totals + row * kPanel;
      piece.ahead = panel.scales(piece.end) + static_cast<size_t>(pass) * steps * piece.ahead_bytes;
      multiply_groups_of<StepBF16, kDecodedRows, kKeepsTotals, kDecodedRun>(
          part_begin(rows, passes, pass + 1) - row, decoded, piece);
    }
  }
}

// ---- the format's part of the table ----

inline size_t coded_gemm_scratch() {
  return sizeof(float) * (kCodedRows + kMostDecodedGroups) * kPanel + kDecodedBytes;
}

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
      if (count < kFewestDecoded<Coding>) {
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
