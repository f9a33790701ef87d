// Products of int8 activations with codes whose groups have two scales, for many rows: some groups
// of a panel are decoded once for all rows of a block, into bytes and fp32 numbers.
//
// The sums are those of gemm_quantized.inl, added up in the same order: equal bits.
#pragma once

#include "kernels/gemm_quantized.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Groups that are decoded together. With the inputs of a pass they take less than 32 KiB.
constexpr int kExpandedGroups = 16;

// From how many rows on groups are decoded apart: their bytes are written and read again.
constexpr int kFewestExpanded = 8 * kQuantizedRows;

// A group of a panel, decoded.
template <Format format>
struct ExpandedGroup {
  static constexpr int kParts = layout_of(format).parts;
  alignas(kAlign) uint8_t codes[kSteps * kCodeRow];
  float scales[layout_of(format).minima ? 2 : 1][kParts][kPanel];  // and minima
};

constexpr size_t kMostExpandedBytes =
    kExpandedGroups * (kSteps * kCodeRow + 2 * 2 * kPanel * sizeof(float));

// Whether many rows are multiplied in this way, and not by a tier's own function.
template <Format format, class Own = Codes>
constexpr bool can_expand() {
  return layout_of(format).parts == 2 &&
         !requires { Own::template add_groups<format, kQuantizedRows>; };
}

template <Format format, int step = 0>
OCTAVO_INLINE void expand_codes(const uint8_t* codes, const Variant& variant, uint8_t* to) {
  if constexpr (step < kSteps) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVectors; v++) {
      const int at = v * kLanes * 4;
      store_codes(to + step * kCodeRow + at, decode<format, step>(codes + at, variant));
    }
    expand_codes<format, step + 1>(codes, variant, to);
  }
}

template <Format format>
OCTAVO_INLINE void expand_group(const uint8_t* codes, const Variant& variant, Place at,
                                ExpandedGroup<format>& to) {
  expand_codes<format>(codes, variant, to.codes);
#pragma GCC unroll 2
  for (int part = 0; part < ExpandedGroup<format>::kParts; part++) {
#pragma GCC unroll 8
    for (int first = 0; first < kPanel; first += kLanes) {
      store(to.scales[0][part] + first, load_scale<format>(variant, at, part, first));
      if constexpr (layout_of(format).minima) {
        store(to.scales[1][part] + first, load_minimum<format>(at, part, first));
      }
    }
  }
}

// As add_part of gemm_quantized.inl, and add_minima.
template <Format format, int part, int rows, int vectors>
OCTAVO_INLINE void add_expanded_part(Floats (&sums)[rows][vectors],
                                     const ExpandedGroup<format>& group, int first,
                                     const uint8_t* const (&x)[rows]) {
  constexpr int kPartSteps = kSteps / layout_of(format).parts;
  Integers dots[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    const Integers begin = start<format>(x[r], part);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) dots[r][v] = begin;
  }
#pragma GCC unroll 8
  for (int step = part * kPartSteps; step < (part + 1) * kPartSteps; step++) {
    Codes weights[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      weights[v] = load_codes(group.codes + step * kCodeRow + (first + v * kLanes) * 4);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Four four = splat_four(x[r] + step * 4);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) {
        dots[r][v] = dot<has_small_codes(format)>(dots[r][v], weights[v], four);
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) {
    const Floats scale = load(group.scales[0][part] + first + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Floats product = to_floats(dots[r][v]) * splat(read_float(x[r] + kPreparedScale));
      sums[r][v] = fma(product, scale, sums[r][v]);
    }
  }
  if constexpr (layout_of(format).minima) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      const Floats minimum = load(group.scales[1][part] + first + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; r++) {
        sums[r][v] = fma(splat(input_sum<format>(x[r], part)), minimum, sums[r][v]);
      }
    }
  }
}

// Adds the products of some groups with some rows to a tile of sums[r · 32 + o].
template <Format format, int rows>
void add_expanded(const ExpandedGroup<format>* groups, int count, const uint8_t* x,
                  size_t x_stride, float* tile) {
  constexpr int vectors = vectors_beside(rows);
  for (int first = 0; first < kPanel; first += vectors * kLanes) {
    Floats sums[rows][vectors];
    const uint8_t* x_of[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      x_of[r] = x + r * x_stride;
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) sums[r][v] = load(tile + r * kPanel + first + v * kLanes);
    }
#pragma GCC unroll 1
    for (int group = 0; group < count; group++) {
      add_expanded_part<format, 0>(sums, groups[group], first, x_of);
      if constexpr (layout_of(format).parts == 2) {
        add_expanded_part<format, 1>(sums, groups[group], first, x_of);
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; r++) x_of[r] += kPreparedGroup;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) store(tile + r * kPanel + first + v * kLanes, sums[r][v]);
    }
  }
}

template <Format format, int rows = kQuantizedRows>
void add_expanded_rows(int wanted, const ExpandedGroup<format>* groups, int count,
                       const uint8_t* x, size_t x_stride, float* tile) {
  if constexpr (rows > 0) {
    if (wanted == rows) return add_expanded<format, rows>(groups, count, x, x_stride, tile);
    add_expanded_rows<format, rows - 1>(wanted, groups, count, x, x_stride, tile);
  }
}

// One panel for the rows of a block. While some groups are decoded, those after them are prefetched.
template <Format format>
void multiply_expanded(const Matrix& matrix, int panel, const uint8_t* x, int rows,
                       uint8_t* scratch, float* tile) {
  auto* expanded = reinterpret_cast<ExpandedGroup<format>*>(scratch);
  constexpr GroupLayout kLayout = layout_of(format);
  constexpr int kAhead = kExpandedGroups * group_bytes(format);
  const Variant variant = variant_of(matrix.format);
  const size_t x_stride = prepared_int8_bytes(matrix.inputs);
  const int groups = matrix.inputs / kGroup, passes = (rows + kQuantizedRows - 1) / kQuantizedRows;
  const uint8_t* codes = matrix.data + panel * matrix.panel_bytes;
  Place at{codes, 0};
  __builtin_memset(tile, 0, sizeof(float) * kPanel * rows);
  for (int begin = 0; begin < groups; begin += kExpandedGroups) {
    const int count = groups - begin < kExpandedGroups ? groups - begin : kExpandedGroups;
    for (int group = 0; group < count; group++) {
      if ((begin + group) % variant.span == 0) {
        at = {codes, 0};
        codes += kLayout.header_bytes;
      }
      for (int line = 0; line < group_bytes(format); line += kAlign) prefetch(codes + kAhead + line);
      expand_group<format>(codes, variant, at, expanded[group]);
      codes += kLayout.code_bytes;
      at.group++;
    }
    for (int pass = 0; pass < passes; pass++) {
      const int first = part_begin(rows, passes, pass);
      add_expanded_rows<format>(part_begin(rows, passes, pass + 1) - first, expanded, count,
                                x + begin * kPreparedGroup + first * x_stride, x_stride,
                                tile + first * kPanel);
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
