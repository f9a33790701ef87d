// Products of bf16 activations with codes that stand for floats, by tiles for any number of rows: a
// group is decoded once for all rows of a block.
//
// The sums of a group are those of tile_bf16.h from zero, and then total = fma(sum, scale, total).
#pragma once

#include <tile_bf16.h>
#include <tile_codes.h>

#include "kernels/codings.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// The memory of one group's products.
struct CodedTiles {
  alignas(kAlign) uint8_t pairs[kMostCodedGroup / 2 * kPairBytes];
  alignas(kAlign) float sums[2 * kTileRows][kPanel];
};

inline size_t coded_gemm_scratch() { return sizeof(float) * kRowBlock * kPanel; }

// A group's sums of the rows of one tile, or of two, which begin at `first` and `second`.
template <bool kTwo>
void multiply_group(CodedTiles& tiles, int steps, const uint8_t* first, const uint8_t* second,
                    size_t x_bytes) {
  clear_tile<kSums00>();
  clear_tile<kSums01>();
  if constexpr (kTwo) {
    clear_tile<kSums10>();
    clear_tile<kSums11>();
  }
  for (int step = 0; step < steps; ++step) {
    const size_t at = step * kTileRowBytes;
    add_tiles<kTwo>(tiles.pairs + step * kStepWeights, first + at, second + at, x_bytes);
  }
  constexpr size_t kBytes = kPanel * sizeof(float);
  store_tile<kSums00>(tiles.sums[0], kBytes);
  store_tile<kSums01>(tiles.sums[0] + kLanes, kBytes);
  if constexpr (kTwo) {
    store_tile<kSums10>(tiles.sums[kTileRows], kBytes);
    store_tile<kSums11>(tiles.sums[kTileRows] + kLanes, kBytes);
  }
}

inline void add_scaled(const float (*sums)[kPanel], TileOfRows rows, const Floats (&scale)[2],
                       float* totals) {
  for (int row = rows.new_row; row < rows.end; ++row) {
    for (int v = 0; v < 2; ++v) {
      float* total = totals + row * kPanel + v * kLanes;
      store(total, fma(load(sums[row - rows.first] + v * kLanes), scale[v], load(total)));
    }
  }
}

// One panel for up to kRowBlock rows.
template <class Coding>
void multiply_coded_panel(const CodedPanel<Coding>& panel, int groups, const uint8_t* x,
                          size_t x_bytes, int rows, int ahead, float* totals) {
  CodedTiles tiles;
  const int tile_rows = rows < kTileRows ? rows : kTileRows;
  const int num_tiles = (rows + tile_rows - 1) / tile_rows;
  const int steps = (panel.layout.group + 2 * kTilePairs - 1) / (2 * kTilePairs);
  for (int group = 0; group < groups; ++group, x += panel.layout.group * kBf16Bytes) {
    for (size_t line = 0; ahead && line < panel.code_bytes(); line += kAlign) {
      prefetch(panel.codes(group) + ahead + line);
    }
    panel.decode(group, tiles.pairs);
    const Floats scale[2] = {panel.scale(group, 0), panel.scale(group, kLanes)};
    for (int tile = 0; tile < num_tiles; tile += 2) {
      const TileOfRows first = tile_of_rows(rows, tile_rows, tile);
      const bool two = tile + 1 < num_tiles;
      const TileOfRows second = two ? tile_of_rows(rows, tile_rows, tile + 1) : first;
      const auto run = two ? multiply_group<true> : multiply_group<false>;
      run(tiles, steps, x + first.first * x_bytes, x + second.first * x_bytes, x_bytes);
      add_scaled(tiles.sums, first, scale, totals);
      if (two) add_scaled(tiles.sums + kTileRows, second, scale, totals);
    }
  }
}

template <class Coding>
void multiply_coded(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                    int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  float* totals = reinterpret_cast<float*>(scratch);
  const size_t x_bytes = float_prepared_bytes(Format::BF16, matrix.inputs);
  const int blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int group_bytes = coded_layout_of(matrix.format).group * kBf16Bytes;
  configure(shapes_of(rows < kTileRows ? rows : kTileRows,
                      group_bytes < kTileRowBytes ? group_bytes : kTileRowBytes));
  for (int b = 0; b < blocks; ++b) {
    const int begin = part_begin(rows, blocks, b);
    const int count = part_begin(rows, blocks, b + 1) - begin;
    for (int p = first_panel; p < end_panel; ++p) {
      const CodedPanel<Coding> panel = coded_panel<Coding>(matrix, p);
      __builtin_memset(totals, 0, sizeof(float) * kPanel * count);
      ask_for_tile(matrix, epilogue, begin, count, p);
      multiply_coded_panel(panel, matrix.inputs / panel.layout.group, prepared + begin * x_bytes,
                           x_bytes, count, ahead, totals);
      finish_tile(matrix, epilogue, begin, count, p, totals);
    }
  }
  release();
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
