// Products of int8 activations that share a scale by 128 inputs, with int8 weights that do too.
//
// For each such group in order: the integer sum of codes times activations, exact, then
// sum = fma(float(integer) · d, scale, sum). The last group of a row may have fewer inputs. Every
// element is computed in this way, for any number of rows and in all tiers: equal bits. There are
// four times fewer sums of floats than with groups of 32 (kernels/gemm_quantized.inl), so that they
// stay in memory, and more rows share a load of weights.
#pragma once

#include "kernels/gemm_codes.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Sums for all registers' rows (12 with AVX-512) were slower: gcc 12 then moves them about.
constexpr int kWideRows = kQuantizedRows + 2;
constexpr int kWideGroups = kWide / kGroup;  // groups of 32 that share both scales

constexpr int wide_vectors(int rows) {
  return vectors_beside(rows < kQuantizedRows ? rows : kQuantizedRows);
}

// Memory to prefetch, a part with each group of 32 inputs.
struct Ask {
  const uint8_t* from;
  int bytes;  // of a part
};

OCTAVO_INLINE void ask_part(Ask& ask) {
#pragma GCC unroll 1
  for (int at = 0; at < ask.bytes; at += kAlign) __builtin_prefetch(ask.from + at, 0, 3);
  ask.from += ask.bytes;
}

// The products of 32 inputs.
template <int rows, int vectors>
OCTAVO_INLINE void dot_wide(Integers (&sums)[rows][vectors], const uint8_t* codes,
                            const uint8_t* const (&x)[rows], int at) {
#pragma GCC unroll 8
  for (int step = 0; step < kSteps; step++) {
    Codes weights[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      weights[v] = load_codes(codes + step * kCodeRow + v * kLanes * 4);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const Four four = splat_four(x[r] + at + step * 4);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) sums[r][v] = dot<false>(sums[r][v], weights[v], four);
    }
  }
}

// A block of a panel, with `groups` groups of 32 inputs, for some of its outputs: added to `tile`.
template <int rows, int vectors>
OCTAVO_INLINE void add_wide_block(const uint8_t* block, int groups, int first, Ask& ask,
                                  const uint8_t* const (&x)[rows], float* tile) {
  Integers sums[rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      sums[r][v] = kTakesOffsetOff ? no_integers() : splat_integer(x[r] + kWideStart);
    }
  }
  const uint8_t* group = block + kHeaderLine;
#pragma GCC unroll 1
  for (int i = 0; i < groups; i++) {
    if (first == 0) ask_part(ask);
    dot_wide<rows, vectors>(sums, group + first * 4, x, i * kGroup);
    group += kSteps * kCodeRow;
  }
  // Otherwise the compiler loads what follows before the loop, and has no registers left for it.
  asm volatile("" ::: "memory");
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) {
    const Floats scale = load_halves(block + (first + v * kLanes) * 2);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      float* sum = tile + r * kPanel + first + v * kLanes;
      const Floats d = splat(read_float(x[r] + kWideScale));
      store(sum, fma(to_floats(sums[r][v]) * d, scale, load(sum)));
    }
  }
}

// A panel's products with some rows: a tile of sums[r · 32 + o].
template <int rows>
void add_wide(const uint8_t* weights, Ask ask, const uint8_t* x, size_t x_stride, int groups,
              float* tile) {
  constexpr int vectors = wide_vectors(rows);
  constexpr int kBlockBytes = kHeaderLine + kWideGroups * kSteps * kCodeRow;
  __builtin_memset(tile, 0, rows * kPanel * sizeof(float));
  const uint8_t* x_of[rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) x_of[r] = x + r * x_stride;
  for (int begin = 0; begin < groups; begin += kWideGroups) {
    const int count = groups - begin < kWideGroups ? groups - begin : kWideGroups;
    for (int first = 0; first < kPanel; first += vectors * kLanes) {
      add_wide_block<rows, vectors>(weights, count, first, ask, x_of, tile);
    }
    weights += kBlockBytes;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) x_of[r] += kPreparedWide;
  }
}

template <int rows = kWideRows>
void add_wide_rows(int wanted, const uint8_t* weights, Ask ask, const uint8_t* x, size_t x_stride,
                   int groups, float* tile) {
  if constexpr (rows > 0) {
    if (wanted == rows) return add_wide<rows>(weights, ask, x, x_stride, groups, tile);
    add_wide_rows<rows - 1>(wanted, weights, ask, x, x_stride, groups, tile);
  }
}

inline void gemm_wide(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                      int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  float* tile = reinterpret_cast<float*>(scratch);
  const size_t x_stride = prepared_wide_bytes(matrix.inputs);
  const int groups = matrix.inputs / kGroup;
  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (int block = 0; block < blocks; block++) {
    const int first = part_begin(rows, blocks, block);
    const int count = part_begin(rows, blocks, block + 1) - first;
    const int passes = (count + kWideRows - 1) / kWideRows;
    for (int panel = first_panel; panel < end_panel; panel++) {
      const uint8_t* weights = matrix.data + panel * matrix.panel_bytes;
      if (epilogue.expand.ups) ask_for_ups(matrix, epilogue.expand, first, count, panel);
      for (int pass = 0; pass < passes; pass++) {
        const int begin = part_begin(count, passes, pass);
        const int end = part_begin(count, passes, pass + 1);
        // A panel that is read once is prefetched a little ahead; otherwise each pass prefetches a
        // share of the next panel.
        Ask ask = {weights + ahead, ahead ? kSteps * kCodeRow : 0};
        if (passes > 1) {
          ask.bytes = kSteps * kCodeRow / passes;
          ask.from = weights + matrix.panel_bytes + pass * ask.bytes * groups;
        }
        add_wide_rows(end - begin, weights, ask, prepared + (first + begin) * x_stride, x_stride,
                      groups, tile + begin * kPanel);
      }
      finish_tile(matrix, epilogue, first, count, panel, tile);
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
