// The shapes of tile registers as the processor reads them, and which tile holds what.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kTileRows = 16;        // most rows of a tile
constexpr int kTileRowBytes = 64;    // most bytes of a row
constexpr int kTileRegisters = 8;

// A block of up to 32 rows by a panel's 32 outputs, a quarter in each tile. Its name gives the half
// of the rows and then the half of the outputs.
constexpr int kSums00 = 0, kSums01 = 1, kSums10 = 2, kSums11 = 3;
constexpr int kRows0 = 4, kRows1 = 5;
constexpr int kWeights0 = 6, kWeights1 = 7;

// The memory operand of `ldtilecfg`.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of tiles 0 … 7; the others do not exist
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// Products of `rows` rows in which an instruction takes `input_bytes` of each: one row of weights
// has four of them.
inline TileShapes shapes_of(int rows, int input_bytes) {
  TileShapes shapes;
  const auto set = [&](int tile, int tile_rows, int bytes) {
    shapes.rows[tile] = static_cast<uint8_t>(tile_rows);
    shapes.row_bytes[tile] = static_cast<uint16_t>(bytes);
  };
  for (int tile = kSums00; tile <= kSums11; ++tile) set(tile, rows, kTileRowBytes);
  for (int tile = kRows0; tile <= kRows1; ++tile) set(tile, rows, input_bytes);
  for (int tile = kWeights0; tile <= kWeights1; ++tile) set(tile, input_bytes / 4, kTileRowBytes);
  return shapes;
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
