// The tile registers of AMX: eight matrices of up to 16 rows of 64 bytes, and their instructions
// as assembly. Compilers do not know of the registers, so numbers of tiles are written out.
//
// A thread's tiles exist between `configure` and `release`. In between, no tile may be used in
// another shape than the configured one.
#pragma once

#include <tile_shapes.h>

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr Tiles kTiles = Tiles::Processor;

inline void configure(const TileShapes& shapes) {
  __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}
inline void release() { __asm__ volatile("tilerelease"); }

template <int tile>
inline void clear_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(tile));
}
// Rows of the tile from, or to, memory `stride` bytes apart.
template <int tile>
inline void load_tile(const void* from, size_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   : : "r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
inline void store_tile(void* to, size_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   : : "r"(to), "r"(stride), "i"(tile) : "memory");
}

// Adds the products of rows (of inputs) and columns (of weights) to a tile of fp32 sums: pairs of
// bf16 numbers, in the order that bf16.h describes.
template <int sums, int rows, int columns>
inline void add_bf16_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(rows), "i"(columns));
}
// The same for int32 sums of signed bytes, in fours.
template <int sums, int rows, int columns>
inline void add_int8_tiles() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(rows), "i"(columns));
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
