// Products with bf16 weights by tiles, and the same sums in vectors for few rows.
//
// The order of sums is that of `tdpbf16ps`. For each 32 inputs in order: the products of the 16
// even inputs are added up one after the other, those of the 16 odd ones beside them, both from
// zero with fused multiply-add; then the sum of both is added to the output. Denormal numbers count
// as zero, also as results. Inputs are filled up with zeros to a multiple of 32.
#pragma once

#include <immintrin.h>
#include <tiles.h>

#include "kernels/bytes.h"
#include "kernels/gemm_float.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kTilePairs = kTileRowBytes / 4;   // of inputs, that an instruction adds up
constexpr size_t kPairWeights = kPanel * 4;     // bytes of a panel
constexpr size_t kStepWeights = kTilePairs * kPairWeights;

// The weights of the last inputs, filled up with zeros: what follows a panel is not zero.
struct LastWeights {
  explicit LastWeights(int pairs) : whole(pairs / kTilePairs), rest(pairs % kTilePairs) {}

  void copy(const uint8_t* panel) {
    __builtin_memcpy(weights, panel + whole * kStepWeights, rest * kPairWeights);
  }

  const int whole, rest;  // steps, and pairs behind them
  alignas(kAlign) uint8_t weights[kStepWeights] = {};
};

// What is fetched meanwhile: for each step, some lines of memory which are as far from one another
// as the steps' weights.
struct Ahead {
  const uint8_t* from;
  int first_line, end_line;

  void ask(int step) const {
    for (int line = first_line; line < end_line; ++line) {
      prefetch(from + step * kStepWeights + line * kAlign);
    }
  }
};
constexpr int kStepLines = kStepWeights / kAlign;

// For a panel that is read once: what follows `bytes` further on, or nothing.
inline Ahead ahead_in_panel(const uint8_t* panel, int bytes) {
  return {panel + bytes, 0, bytes ? kStepLines : 0};
}

// ---- few rows, by vectors ----

// Makes denormal numbers zero in this thread's vectors, as tiles do; returns the rules of before.
inline uint32_t flush_denormals() {
  const uint32_t before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  return before;
}

inline Floats first_of_pairs(__m512i pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
}
inline Floats second_of_pairs(__m512i pairs) {
  return {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))};
}

// The sums of the even and of the odd inputs of one step.
template <int Rows>
struct StepSums {
  Floats even[Rows][2], odd[Rows][2];
};

template <int Rows>
inline void add_step(const uint8_t* weights, const uint8_t* x, size_t x_bytes,
                     Floats (&sums)[Rows][2]) {
  StepSums<Rows> step;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < 2; ++v) step.even[r][v] = step.odd[r][v] = splat(0.0f);
  }
  for (int k = 0; k < kTilePairs; ++k, weights += kPairWeights, x += 4) {
    const __m512i w[2] = {_mm512_loadu_si512(weights), _mm512_loadu_si512(weights + 64)};
    const Floats first[2] = {first_of_pairs(w[0]), first_of_pairs(w[1])};
    const Floats second[2] = {second_of_pairs(w[0]), second_of_pairs(w[1])};
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m512i pair = _mm512_set1_epi32(static_cast<int>(read_four(x + r * x_bytes)));
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        step.even[r][v] = fma(first_of_pairs(pair), first[v], step.even[r][v]);
        step.odd[r][v] = fma(second_of_pairs(pair), second[v], step.odd[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < 2; ++v) sums[r][v] = sums[r][v] + (step.even[r][v] + step.odd[r][v]);
  }
}

// Not inlined, because the compiler may move operations of vectors to either side of a change of
// their rules for denormal numbers.
template <int Rows>
__attribute__((noinline)) void add_panel(const uint8_t* panel, const LastWeights& last,
                                         const Ahead& ahead, const uint8_t* x, size_t x_bytes,
                                         float* to) {
  Floats sums[Rows][2];
  for (int r = 0; r < Rows; ++r) sums[r][0] = sums[r][1] = splat(0.0f);
  for (int step = 0; step < last.whole; ++step) {
    ahead.ask(step);
    add_step<Rows>(panel + step * kStepWeights, x + step * kTileRowBytes, x_bytes, sums);
  }
  if (last.rest) add_step<Rows>(last.weights, x + last.whole * kTileRowBytes, x_bytes, sums);
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < 2; ++v) store(to + r * kPanel + v * kLanes, sums[r][v]);
  }
}

template <int Rows>
void multiply_few_bf16(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                       int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  if constexpr (Rows > 1) {
    if (rows < Rows) {
      return multiply_few_bf16<Rows - 1>(matrix, prepared, rows, first_panel, end_panel, scratch,
                                         epilogue, ahead);
    }
  }
  float* sums = reinterpret_cast<float*>(scratch);
  const size_t x_bytes = float_prepared_bytes(matrix.format, matrix.inputs);
  LastWeights last((matrix.inputs + 1) / 2);
  for (int panel = first_panel; panel < end_panel; ++panel) {
    const uint8_t* weights = matrix.data + panel * matrix.panel_bytes;
    last.copy(weights);
    if (epilogue.expand.ups) ask_for_ups(matrix, epilogue.expand, 0, rows, panel);
    const uint32_t before = flush_denormals();
    add_panel<Rows>(weights, last, ahead_in_panel(weights, ahead), prepared, x_bytes, sums);
    _mm_setcsr(before);
    finish_tile(matrix, epilogue, 0, rows, panel, sums);
  }
}

// ---- many rows, by tiles ----

template <bool kTwo>
inline void add_tiles(const uint8_t* weights, const uint8_t* first, const uint8_t* second,
                      size_t x_bytes) {
  load_tile<kWeights0>(weights, kPairWeights);
  load_tile<kWeights1>(weights + kTileRowBytes, kPairWeights);
  load_tile<kRows0>(first, x_bytes);
  add_bf16_tiles<kSums00, kRows0, kWeights0>();
  add_bf16_tiles<kSums01, kRows0, kWeights1>();
  if constexpr (kTwo) {
    load_tile<kRows1>(second, x_bytes);
    add_bf16_tiles<kSums10, kRows1, kWeights0>();
    add_bf16_tiles<kSums11, kRows1, kWeights1>();
  }
}

// A panel's products with the rows of one tile, or of two; they begin at `first` and `second`.
template <bool kTwo>
void multiply_tiles(const uint8_t* panel, const LastWeights& last, const uint8_t* x, size_t x_bytes,
                    int first, int second, float* sums, const Ahead& ahead) {
  clear_tile<kSums00>();
  clear_tile<kSums01>();
  if constexpr (kTwo) {
    clear_tile<kSums10>();
    clear_tile<kSums11>();
  }
  const uint8_t* rows = x + first * x_bytes;
  const uint8_t* more = x + second * x_bytes;
  for (int step = 0; step < last.whole; ++step) {
    ahead.ask(step);
    add_tiles<kTwo>(panel + step * kStepWeights, rows, more, x_bytes);
    rows += kTileRowBytes;
    more += kTileRowBytes;
  }
  if (last.rest) add_tiles<kTwo>(last.weights, rows, more, x_bytes);
  constexpr size_t kBytes = kPanel * sizeof(float);
  store_tile<kSums00>(sums + first * kPanel, kBytes);
  store_tile<kSums01>(sums + first * kPanel + kLanes, kBytes);
  if constexpr (kTwo) {
    store_tile<kSums10>(sums + second * kPanel, kBytes);
    store_tile<kSums11>(sums + second * kPanel + kLanes, kBytes);
  }
}

// One panel for up to kRowBlock rows. All tiles have the same number of rows: the last one begins
// so early that it is full, and writes some rows a second time. If several passes read the panel,
// each fetches a share of the next one.
void multiply_panel_by_tiles(const Matrix& matrix, int panel, const LastWeights& last,
                             const uint8_t* x, size_t x_bytes, int rows, int ahead,
                             float* sums) {
  const uint8_t* weights = matrix.data + panel * matrix.panel_bytes;
  const int tile_rows = rows < kTileRows ? rows : kTileRows;
  const auto row_of = [&](int tile) {
    const int row = tile * tile_rows;
    return row + tile_rows > rows ? rows - tile_rows : row;
  };
  const int tiles = (rows + tile_rows - 1) / tile_rows, passes = (tiles + 1) / 2;
  for (int pass = 0; pass < passes; ++pass) {
    const Ahead next{weights + matrix.panel_bytes, part_begin(kStepLines, passes, pass),
                     part_begin(kStepLines, passes, pass + 1)};
    const bool two = 2 * pass + 1 < tiles;
    const auto run = two ? multiply_tiles<true> : multiply_tiles<false>;
    run(weights, last, x, x_bytes, row_of(2 * pass), row_of(2 * pass + 1), sums,
        passes > 1 ? next : ahead_in_panel(weights, ahead));
  }
}

void multiply_bf16(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                   int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  float* sums = reinterpret_cast<float*>(scratch);
  const size_t x_bytes = float_prepared_bytes(matrix.format, matrix.inputs);
  LastWeights last((matrix.inputs + 1) / 2);
  const int blocks = (rows + kRowBlock - 1) / kRowBlock;
  configure(shapes_of(rows < kTileRows ? rows : kTileRows, kTileRowBytes));
  for (int b = 0; b < blocks; ++b) {
    const int begin = part_begin(rows, blocks, b);
    const int count = part_begin(rows, blocks, b + 1) - begin;
    for (int panel = first_panel; panel < end_panel; ++panel) {
      last.copy(matrix.data + panel * matrix.panel_bytes);
      ask_for_tile(matrix, epilogue, begin, count, panel);
      multiply_panel_by_tiles(matrix, panel, last, prepared + begin * x_bytes, x_bytes, count,
                              ahead, sums);
      finish_tile(matrix, epilogue, begin, count, panel, sums);
    }
  }
  release();
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
