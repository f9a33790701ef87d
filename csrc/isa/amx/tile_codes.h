// Products of int8 activations with panels of codes, by tiles: the sums of gemm_quantized.inl with
// the same bits, since integers are exact and fp32 numbers are added up in the same order.
//
// The codes of a group are expanded to signed bytes once for all rows, and lie as tiles take them:
// four inputs of each of 32 outputs in a row.
#pragma once

#include <tiles.h>

#include "kernels/gemm_codes.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// The memory of one group's products.
struct GroupTiles {
  alignas(kAlign) uint8_t codes[kSteps * kCodeRow];
  alignas(kAlign) int32_t dots[2 * kTileRows][kPanel];
};

// Codes less their offset, all of which are signed bytes.
template <Format format, int step = 0>
OCTAVO_INLINE void expand(const uint8_t* codes, const Variant& variant, uint8_t* to) {
  if constexpr (step < kSteps) {
    const __m512i offset = _mm512_set1_epi8(static_cast<char>(layout_of(format).offset));
    for (int v = 0; v < 2; v++) {
      const __m512i four = decode<format, step>(codes + v * kAlign, variant).v;
      _mm512_storeu_si512(to + step * kCodeRow + v * kAlign, _mm512_sub_epi8(four, offset));
    }
    expand<format, step + 1>(codes, variant, to);
  }
}

// The scales of a part of a group, and its minima, of a panel's outputs.
struct Scales {
  Floats scale[2], minimum[2];
};

// Adds the products of a part of a group to a row's sums, and then its minima.
template <Format format, int part>
OCTAVO_INLINE void add_row(const int32_t* dots, const uint8_t* x, const Scales& scales,
                           float* sums) {
  const Floats input_scale = splat(read_float(x + kPreparedScale));
  for (int v = 0; v < 2; v++) {
    const Integers integers{_mm512_loadu_si512(dots + v * kLanes)};
    Floats sum = load(sums + v * kLanes);
    sum = fma(to_floats(integers) * input_scale, scales.scale[v], sum);
    if constexpr (layout_of(format).minima) {
      sum = fma(splat(input_sum<format>(x, part)), scales.minimum[v], sum);
    }
    store(sums + v * kLanes, sum);
  }
}

// The tiles of some rows: each has `tile_rows`, the last one begins so early that it is full. Rows
// that it shares with the one before it are added up once.
struct TileOfRows {
  int first;    // row of the tile
  int new_row;  // the first that no tile before has
  int end;
};
inline TileOfRows tile_of_rows(int rows, int tile_rows, int tile) {
  const int begin = tile * tile_rows, end = begin + tile_rows < rows ? begin + tile_rows : rows;
  return {end - tile_rows, begin, end};
}

template <Format format, bool kTwo, int part>
OCTAVO_INLINE void add_part_by_tiles(GroupTiles& group, const Scales& scales, const uint8_t* x,
                                     size_t x_stride, TileOfRows first, TileOfRows second,
                                     float* sums) {
  constexpr int kPartInputs = kGroup / layout_of(format).parts;
  const uint8_t* inputs = x + part * kPartInputs;
  constexpr size_t kDotBytes = kPanel * sizeof(int32_t);
  clear_tile<kSums00>();
  clear_tile<kSums01>();
  load_tile<kRows0>(inputs + first.first * x_stride, x_stride);
  add_int8_tiles<kSums00, kRows0, kWeights0>();
  add_int8_tiles<kSums01, kRows0, kWeights1>();
  if constexpr (kTwo) {
    clear_tile<kSums10>();
    clear_tile<kSums11>();
    load_tile<kRows1>(inputs + second.first * x_stride, x_stride);
    add_int8_tiles<kSums10, kRows1, kWeights0>();
    add_int8_tiles<kSums11, kRows1, kWeights1>();
  }
  store_tile<kSums00>(group.dots[0], kDotBytes);
  store_tile<kSums01>(group.dots[0] + kLanes, kDotBytes);
  if constexpr (kTwo) {
    store_tile<kSums10>(group.dots[kTileRows], kDotBytes);
    store_tile<kSums11>(group.dots[kTileRows] + kLanes, kDotBytes);
  }
  for (int row = first.new_row; row < first.end; row++) {
    add_row<format, part>(group.dots[row - first.first], x + row * x_stride, scales,
                          sums + row * kPanel);
  }
  if constexpr (kTwo) {
    for (int row = second.new_row; row < second.end; row++) {
      add_row<format, part>(group.dots[kTileRows + row - second.first], x + row * x_stride, scales,
                            sums + row * kPanel);
    }
  }
}

// One part of a group, whose codes are expanded, for all rows of a block.
template <Format format, int part>
void add_part_of_rows(GroupTiles& group, const Variant& variant, Place at, const uint8_t* x,
                      size_t x_stride, int rows, int tile_rows, float* sums) {
  constexpr int kPartSteps = kSteps / layout_of(format).parts;
  const uint8_t* weights = group.codes + part * kPartSteps * kCodeRow;
  load_tile<kWeights0>(weights, kCodeRow);
  load_tile<kWeights1>(weights + kTileRowBytes, kCodeRow);
  Scales scales{};
  for (int v = 0; v < 2; v++) {
    scales.scale[v] = load_scale<format>(variant, at, part, v * kLanes);
    if constexpr (layout_of(format).minima) {
      scales.minimum[v] = load_minimum<format>(at, part, v * kLanes);
    }
  }
  const int tiles = (rows + tile_rows - 1) / tile_rows;
  for (int tile = 0; tile < tiles; tile += 2) {
    const TileOfRows first = tile_of_rows(rows, tile_rows, tile);
    if (tile + 1 == tiles) {
      add_part_by_tiles<format, false, part>(group, scales, x, x_stride, first, {}, sums);
    } else {
      const TileOfRows second = tile_of_rows(rows, tile_rows, tile + 1);
      add_part_by_tiles<format, true, part>(group, scales, x, x_stride, first, second, sums);
    }
  }
}

// One panel for up to kBlockRows rows.
template <Format format>
void add_groups_by_tiles(const Matrix& matrix, int panel, const uint8_t* x, int rows, int ahead,
                         float* sums) {
  constexpr GroupLayout kLayout = layout_of(format);
  const Variant variant = variant_of(matrix.format);
  const int span = variant.span, groups = matrix.inputs / kGroup;
  const size_t x_stride = prepared_int8_bytes(matrix.inputs);
  const int tile_rows = rows < kTileRows ? rows : kTileRows;
  GroupTiles group;
  __builtin_memset(sums, 0, sizeof(float) * kPanel * rows);
  const uint8_t* codes = matrix.data + panel * matrix.panel_bytes;
  Place at{codes, 0};
  for (int index = 0; index < groups; index++, at.group++, codes += kLayout.code_bytes) {
    if (index % span == 0) {
      at = {codes, 0};
      codes += kLayout.header_bytes;
    }
    for (int line = 0; ahead && line < group_bytes(format); line += kAlign) {
      prefetch(codes + ahead + line);
    }
    expand<format>(codes, variant, group.codes);
    add_part_of_rows<format, 0>(group, variant, at, x, x_stride, rows, tile_rows, sums);
    if constexpr (kLayout.parts == 2) {
      add_part_of_rows<format, 1>(group, variant, at, x, x_stride, rows, tile_rows, sums);
    }
    x += kPreparedGroup;
  }
}

template <Format format>
void multiply_codes_in(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                       int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  float* sums = reinterpret_cast<float*>(scratch);
  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  configure(shapes_of(rows < kTileRows ? rows : kTileRows, kGroup / layout_of(format).parts));
  for (int block = 0; block < blocks; block++) {
    const int first = part_begin(rows, blocks, block);
    const int count = part_begin(rows, blocks, block + 1) - first;
    const uint8_t* x = prepared + first * prepared_int8_bytes(matrix.inputs);
    for (int panel = first_panel; panel < end_panel; panel++) {
      if (epilogue.expand.ups) ask_for_ups(matrix, epilogue.expand, first, count, panel);
      add_groups_by_tiles<format>(matrix, panel, x, count, ahead, sums);
      finish_tile(matrix, epilogue, first, count, panel, sums);
    }
  }
  release();
}

inline void multiply_codes(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                           int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  with_codes(matrix.format, [&](auto of) {
    multiply_codes_in<decltype(of)::value>(matrix, prepared, rows, first_panel, end_panel, scratch,
                                           epilogue, ahead);
  });
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
