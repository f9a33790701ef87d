// The tile registers of AMX as arrays, with what the architecture manual says of each instruction:
// the kernels of the amx tier run on them where the processor has no tiles. What the processor
// refuses (a tile that is not configured, shapes that do not match) ends the process here too.
#pragma once

#include <immintrin.h>
#include <tile_shapes.h>

#include "kernels/numbers.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr Tiles kTiles = Tiles::Emulated;

struct Tile {
  alignas(64) uint8_t bytes[kTileRows][kTileRowBytes];
};
struct TileState {
  bool configured;
  TileShapes shapes;
  Tile tiles[kTileRegisters];
};
thread_local TileState tile_state{};

// The processor raises an exception.
inline void demand(bool holds) {
  if (!holds) __builtin_trap();
}

inline int rows_of(int tile) { return tile_state.shapes.rows[tile]; }
inline int bytes_of(int tile) { return tile_state.shapes.row_bytes[tile]; }
inline void demand_shape(int tile) {
  demand(tile_state.configured && rows_of(tile) > 0);
}

inline void configure(const TileShapes& shapes) {
  demand(shapes.palette == 1 && shapes.start_row == 0);
  for (uint8_t zero : shapes.reserved) demand(zero == 0);
  for (int tile = 0; tile < 16; ++tile) {
    const int rows = shapes.rows[tile], bytes = shapes.row_bytes[tile];
    demand(tile < kTileRegisters || (rows == 0 && bytes == 0));
    demand(rows <= kTileRows && bytes <= kTileRowBytes && (rows == 0) == (bytes == 0));
  }
  tile_state.configured = true;
  tile_state.shapes = shapes;
  __builtin_memset(tile_state.tiles, 0, sizeof tile_state.tiles);
}
inline void release() {
  tile_state.configured = false;
  __builtin_memset(tile_state.tiles, 0, sizeof tile_state.tiles);
}

template <int tile>
inline void clear_tile() {
  demand_shape(tile);
  __builtin_memset(&tile_state.tiles[tile], 0, sizeof(Tile));
}
template <int tile>
inline void load_tile(const void* from, size_t stride) {
  clear_tile<tile>();
  for (int row = 0; row < rows_of(tile); ++row) {
    __builtin_memcpy(tile_state.tiles[tile].bytes[row],
                     static_cast<const uint8_t*>(from) + row * stride, bytes_of(tile));
  }
}
template <int tile>
inline void store_tile(void* to, size_t stride) {
  demand_shape(tile);
  for (int row = 0; row < rows_of(tile); ++row) {
    __builtin_memcpy(static_cast<uint8_t*>(to) + row * stride, tile_state.tiles[tile].bytes[row],
                     bytes_of(tile));
  }
}

// The shapes that products take: rows m × k, columns k × n, sums m × n.
inline void demand_product(int sums, int rows, int columns) {
  demand(sums != rows && sums != columns && rows != columns);
  const int tiles[] = {sums, rows, columns};
  for (int tile : tiles) {
    demand_shape(tile);
    demand(bytes_of(tile) % 4 == 0);
  }
  demand(bytes_of(rows) / 4 == rows_of(columns) && rows_of(sums) == rows_of(rows) &&
         bytes_of(sums) == bytes_of(columns));
}

template <typename Number>
inline Number number_at(const Tile& tile, int row, int index) {
  Number number;
  __builtin_memcpy(&number, tile.bytes[row] + index * sizeof number, sizeof number);
  return number;
}
template <typename Number>
inline void set_number(Tile& tile, int row, int index, Number number) {
  __builtin_memcpy(tile.bytes[row] + index * sizeof number, &number, sizeof number);
}

// One row of tdpbf16ps, under rules for denormal numbers that its caller sets.
__attribute__((noinline)) void add_bf16_row(Tile& sums, const Tile& rows, const Tile& columns,
                                            int m, int pairs, int num_columns) {
  float even[kTileRows] = {}, odd[kTileRows] = {};
  for (int k = 0; k < pairs; ++k) {
    const float first = bf16_to_float(number_at<uint16_t>(rows, m, 2 * k));
    const float second = bf16_to_float(number_at<uint16_t>(rows, m, 2 * k + 1));
    for (int n = 0; n < num_columns; ++n) {
      const uint32_t pair = number_at<uint32_t>(columns, k, n);
      even[n] = __builtin_fmaf(first, bits_to_float(pair << 16), even[n]);
      odd[n] = __builtin_fmaf(second, bits_to_float(pair & 0xFFFF0000u), odd[n]);
    }
  }
  for (int n = 0; n < num_columns; ++n) {
    set_number(sums, m, n, number_at<float>(sums, m, n) + (even[n] + odd[n]));
  }
}

template <int sums, int rows, int columns>
inline void add_bf16_tiles() {
  demand_product(sums, rows, columns);
  // Whatever a program has set: rounding to nearest even, no exceptions, denormal numbers are zero.
  constexpr uint32_t kManual = 0x9FC0;
  const uint32_t before = _mm_getcsr();
  _mm_setcsr(kManual);
  for (int m = 0; m < rows_of(sums); ++m) {
    add_bf16_row(tile_state.tiles[sums], tile_state.tiles[rows], tile_state.tiles[columns], m,
                 bytes_of(rows) / 4, bytes_of(columns) / 4);
  }
  _mm_setcsr(before);
}

template <int sums, int rows, int columns>
inline void add_int8_tiles() {
  demand_product(sums, rows, columns);
  for (int m = 0; m < rows_of(sums); ++m) {
    for (int n = 0; n < bytes_of(columns) / 4; ++n) {
      // The processor's sums wrap around.
      uint32_t sum = number_at<uint32_t>(tile_state.tiles[sums], m, n);
      for (int k = 0; k < bytes_of(rows) / 4; ++k) {
        for (int i = 0; i < 4; ++i) {
          sum += static_cast<uint32_t>(
              number_at<int8_t>(tile_state.tiles[rows], m, 4 * k + i) *
              number_at<int8_t>(tile_state.tiles[columns], k, 4 * n + i));
        }
      }
      set_number(tile_state.tiles[sums], m, n, sum);
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
