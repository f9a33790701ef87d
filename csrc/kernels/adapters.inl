// The two products of an adapter: rows become a few low numbers each (shrink), and these become
// addends to the sums of the matrix that the adapter changes (expand).
//
// Exactness: a low number is summed in sixteen columns that are added up last, an addend over even
// and odd low numbers, whose two sums are added up last. Both depend on the row and its adapter
// alone, and every tier gives the same bits. Magnitudes and biases come behind the addend.
#pragma once

#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kColumns = 16;  // columns of a low number's sum; outputs of a half panel
constexpr int kColumnVectors = kColumns / kLanes;
// Rows whose sums are in registers together, where one vector has all columns.
constexpr int kRowsTogether = kLanes == kColumns ? 4 : 1;
constexpr int kExpandedTogether = kLanes == kColumns ? 8 : 1;
constexpr int kDownAhead = 4096;  // bytes that weights are prefetched before they are needed

// The types of an adapter's numbers. `down` reads input `half` · 16 + lane … of a rank's inputs in
// a block; `up` reads the outputs of low number k from `lane` on.
struct AdapterF32 {
  static constexpr int kBytes = 4;
  template <int kHalf>
  static Floats down(const uint8_t* rank, int lane) {
    return load(reinterpret_cast<const float*>(rank) + kHalf * kColumns + lane);
  }
  template <int kOdd>
  static Floats up(const uint8_t* data, int k, int lane) {
    return load(reinterpret_cast<const float*>(data) + (k + kOdd) * kColumns + lane);
  }
};

struct AdapterF16 {
  static constexpr int kBytes = 2;
  template <int kHalf>
  static Floats down(const uint8_t* rank, int lane) {
    return load_half(reinterpret_cast<const uint16_t*>(rank) + kHalf * kColumns + lane);
  }
  template <int kOdd>
  static Floats up(const uint8_t* data, int k, int lane) {
    return load_half(reinterpret_cast<const uint16_t*>(data) + (k + kOdd) * kColumns + lane);
  }
};

// Numbers lie in pairs: of inputs that are 16 apart, and of low numbers k (even) and k + 1.
struct AdapterBF16 {
  static constexpr int kBytes = 2;
  template <int kHalf>
  static Floats down(const uint8_t* rank, int lane) {
    return load_bf16<kHalf>(rank + lane * 4);
  }
  template <int kOdd>
  static Floats up(const uint8_t* data, int k, int lane) {
    return load_bf16<kOdd>(data + (k * kColumns + lane * 2) * 2);
  }
};

// ---- shrink ----

template <int Rows>
using ColumnSums = Floats[kDownRanks][Rows][kColumnVectors];

template <class Numbers, int Rows>
inline void add_block(const uint8_t* weights, const float* const (&x)[Rows],
                      ColumnSums<Rows>& sums) {
  constexpr int kRankBytes = kDownInputs * Numbers::kBytes;
  const auto add_half = [&]<int kHalf>() {
#pragma GCC unroll 16
    for (int v = 0; v < kColumnVectors; ++v) {
      Floats input[Rows];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) input[r] = load(x[r] + kHalf * kColumns + v * kLanes);
#pragma GCC unroll 4
      for (int rank = 0; rank < kDownRanks; ++rank) {
        const Floats w =
            Numbers::template down<kHalf>(weights + rank * kRankBytes, v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sums[rank][r][v] = fma(w, input[r], sums[rank][r][v]);
      }
    }
  };
  add_half.template operator()<0>();
  add_half.template operator()<1>();
}

inline float sum_of_columns(const Floats (&sums)[kColumnVectors]) {
  float columns[kColumns];
  for (int v = 0; v < kColumnVectors; ++v) store(columns + v * kLanes, sums[v]);
  for (int half = kColumns / 2; half > 0; half /= 2)
    for (int column = 0; column < half; ++column) columns[column] += columns[column + half];
  return columns[0];
}

// Ranks tile · 4 … of a few rows.
template <class Numbers, int Rows>
void shrink_tile(const Down& down, const float* const* rows, float* const* low, int tile,
                 float factor) {
  constexpr size_t kBlockBytes = size_t{kDownRanks} * kDownInputs * Numbers::kBytes;
  const int whole = down.inputs / kDownInputs, rest = down.inputs % kDownInputs;
  const uint8_t* weights = down.data + tile * (whole + (rest > 0)) * kBlockBytes;
  ColumnSums<Rows> sums;
  for (auto& of_rank : sums)
    for (auto& of_row : of_rank)
      for (Floats& sum : of_row) sum = splat(0.0f);
  const float* x[Rows];
  for (int r = 0; r < Rows; ++r) x[r] = rows[r];
  for (int block = 0; block < whole; ++block) {
    for (size_t line = 0; line < kBlockBytes; line += kAlign)
      prefetch(weights + kDownAhead + line);
    add_block<Numbers, Rows>(weights, x, sums);
    weights += kBlockBytes;
    for (int r = 0; r < Rows; ++r) x[r] += kDownInputs;
  }
  if (rest > 0) {
    float padded[Rows][kDownInputs] = {};
    for (int r = 0; r < Rows; ++r) {
      __builtin_memcpy(padded[r], x[r], rest * sizeof(float));
      x[r] = padded[r];
    }
    add_block<Numbers, Rows>(weights, x, sums);
  }
  for (int rank = 0; rank < kDownRanks; ++rank) {
    const float scale = down.scales[tile * kDownRanks + rank] * factor;
    for (int r = 0; r < Rows; ++r)
      low[r][tile * kDownRanks + rank] = sum_of_columns(sums[rank][r]) * scale;
  }
}

template <class Numbers, int Rows = kRowsTogether>
void shrink_some_rows(int rows, const Down& down, const float* const* x, float* const* low,
                      int tile, float factor) {
  if constexpr (Rows > 1) {
    if (rows < Rows) {
      return shrink_some_rows<Numbers, Rows - 1>(rows, down, x, low, tile, factor);
    }
  }
  shrink_tile<Numbers, Rows>(down, x, low, tile, factor);
}

template <class Numbers>
void shrink_as(const Down& down, const float* const* x, float* const* low, int rows,
               int first_tile, int end_tile, float factor) {
  for (int tile = first_tile; tile < end_tile; ++tile)
    for (int row = 0; row < rows; row += kRowsTogether)
      shrink_some_rows<Numbers>(rows - row < kRowsTogether ? rows - row : kRowsTogether, down,
                                x + row, low + row, tile, factor);
}

void shrink(const Down& down, const float* const* x, float* const* low, int rows, int first_tile,
            int end_tile, float factor) {
  const auto run = down.format == Format::F32   ? shrink_as<AdapterF32>
                   : down.format == Format::F16 ? shrink_as<AdapterF16>
                                                : shrink_as<AdapterBF16>;
  run(down, x, low, rows, first_tile, end_tile, factor);
}

// ---- expand ----

// Makes of a sum, its addend and the row's factor what an adapter with magnitudes or biases wants.
inline Floats finished_change(const UpHalf& half, int lane, Floats sum, Floats added,
                              Floats factor) {
  if (half.magnitudes) {
    const Floats magnitude = load(half.magnitudes + lane);
    sum = fma(sum * factor, magnitude - splat(1.0f), sum);
    added = added * magnitude;
  }
  sum = sum + added;
  return half.bias ? fma(load(half.bias + lane), factor, sum) : sum;
}

// Adds to 16 sums of each row, which are kPanel apart, as are the rows' low numbers by low_stride.
template <class Numbers, int Rows>
void expand_half(const UpHalf& half, const float* low, size_t low_stride, const float* factors,
                 float* sums) {
  // Of even and of odd numbers apart: one sum alone would wait for each of its additions.
  Floats added[2][Rows][kColumnVectors];
  for (auto& of_parity : added)
    for (auto& of_row : of_parity)
      for (Floats& sum : of_row) sum = splat(0.0f);
  const auto add = [&]<int kOdd>(int k) {
    const float* numbers = low + half.first + k + kOdd;
#pragma GCC unroll 16
    for (int v = 0; v < kColumnVectors; ++v) {
      const Floats w = Numbers::template up<kOdd>(half.data, k, v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r)
        added[kOdd][r][v] = fma(w, splat(numbers[r * low_stride]), added[kOdd][r][v]);
    }
  };
  int k = 0;
  for (; k + 2 <= half.count; k += 2) {
    add.template operator()<0>(k);
    add.template operator()<1>(k);
  }
  if (k < half.count) add.template operator()<0>(k);
  const bool only_adds = !half.magnitudes && !half.bias;
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kColumnVectors; ++v) {
      float* sum = sums + r * kPanel + v * kLanes;
      const Floats both = added[0][r][v] + added[1][r][v];
      store(sum, only_adds ? load(sum) + both
                           : finished_change(half, v * kLanes, load(sum), both,
                                             splat(factors[r])));
    }
}

template <class Numbers, int Rows = kExpandedTogether>
void expand_some_rows(int rows, const UpHalf& half, const float* low, size_t low_stride,
                      const float* factors, float* sums) {
  if constexpr (Rows > 1) {
    if (rows < Rows)
      return expand_some_rows<Numbers, Rows - 1>(rows, half, low, low_stride, factors, sums);
  }
  expand_half<Numbers, Rows>(half, low, low_stride, factors, sums);
}

template <class Numbers>
void expand_rows(const UpHalf& half, const float* low, size_t low_stride, const float* factors,
                 int rows, float* sums) {
  for (int row = 0; row < rows; row += kExpandedTogether)
    expand_some_rows<Numbers>(rows - row < kExpandedTogether ? rows - row : kExpandedTogether, half,
                              low + row * low_stride, low_stride, factors + row,
                              sums + row * kPanel);
}

inline int num_halves(const Matrix& matrix, int panel) {
  return matrix.outputs - panel * kPanel > kColumns ? 2 : 1;
}

inline bool changes_sums(const UpHalf& half) {
  return half.count > 0 || half.magnitudes || half.bias;
}

// Adds to the sums of rows first_row … of panel `panel` what their adapters add. Rows without one
// stay as they are: zero would change a sum of -0.
void expand_tile(const Matrix& matrix, const Expand& expand, int first_row, int rows, int panel,
                 float* sums) {
  const int halves = num_halves(matrix, panel);
  for (int begin = 0, end; begin < rows; begin = end) {
    const Up* ups = expand.ups[first_row + begin];
    for (end = begin + 1; end < rows && expand.ups[first_row + end] == ups;) ++end;
    if (!ups) continue;
    const Up& up = ups[expand.matrix];
    const auto run = up.format == Format::F32   ? expand_rows<AdapterF32>
                     : up.format == Format::F16 ? expand_rows<AdapterF16>
                                                : expand_rows<AdapterBF16>;
    for (int half = 0; half < halves; ++half) {
      const UpHalf& of_half = up.halves[panel * 2 + half];
      if (!changes_sums(of_half)) continue;
      run(of_half, expand.low + (first_row + begin) * expand.low_stride, expand.low_stride,
          expand.factors + first_row + begin, end - begin,
          sums + begin * kPanel + half * kColumns);
    }
  }
}

// Prefetches what the adapters of these rows add to a panel, which arrives while its sums are made.
void ask_for_ups(const Matrix& matrix, const Expand& expand, int first_row, int rows, int panel) {
  const int halves = num_halves(matrix, panel);
  const Up* last = nullptr;
  for (int row = first_row; row < first_row + rows; ++row) {
    const Up* ups = expand.ups[row];
    if (!ups || ups == last) continue;
    last = ups;
    const Up& up = ups[expand.matrix];
    const int bytes = up.format == Format::F32 ? 4 : 2;
    for (int half = 0; half < halves; ++half) {
      const UpHalf& of_half = up.halves[panel * 2 + half];
      const int all = (of_half.count + of_half.count % 2) * kColumns * bytes;
      for (int at = 0; at < all; at += kAlign) prefetch(of_half.data + at);
    }
    // What describes the next panel's: to wait for it would hold up all that is asked for then.
    prefetch(up.halves + panel * 2 + 2);
  }
}

inline void add_adapters(KernelTable& table) { table.shrink = shrink; }

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
