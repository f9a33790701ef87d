// The epilogue of products: takes a tile of rows × 32 fp32 sums and does everything that `Epilogue`
// asks for, for full and for ragged panels alike.
//
// The order for each element: sum + adapter's addend, + bias, · scale, soft cap, activation (or gate · up), then
// either · row weight and added to `out`, or + residual and written.
#pragma once

#include "kernels/adapters.inl"
#include "kernels/math.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// The first row of part `i`, if `rows` are divided into even parts.
inline int part_begin(int rows, int parts, int i) {
  return static_cast<int>(static_cast<int64_t>(rows) * i / parts);
}

constexpr int kGates = kPanel / 2;  // gates of a gated panel; as many ups follow them

// The number of outputs that panel `panel` writes: 32, or 16 where gates and ups lie in it; less in
// the last. The last gated panel has its ups at 16 as every other one, however few gates precede them.
inline int panel_columns(const Matrix& matrix, const Epilogue& epilogue, int panel) {
  const int left = matrix.outputs - panel * kPanel;
  const int full = epilogue.gated ? kGates : kPanel;
  const int columns = epilogue.gated ? left - kGates : left;
  return columns < full ? columns : full;
}

// Bias, scale and cap of kLanes sums; `n` of them are outputs of the matrix, the first at `output`.
inline Floats finished(const Epilogue& epilogue, Floats sum, int output, int n) {
  if (epilogue.bias) sum = sum + load_first(epilogue.bias + output, n);
  if (epilogue.scale != 1.0f) sum = sum * splat(epilogue.scale);
  if (epilogue.cap != 0.0f) {
    const Floats cap = splat(epilogue.cap);
    sum = hyperbolic_tangent(sum / cap) * cap;
  }
  return sum;
}

inline void finish_row(const Epilogue& epilogue, int row, int panel, int columns,
                       const float* sums) {
  const int first = epilogue.first_output + panel * (epilogue.gated ? kGates : kPanel);
  const int to = epilogue.out_rows ? epilogue.out_rows[row] : row;
  float* out = epilogue.out + static_cast<size_t>(to) * epilogue.out_stride + first;
  const float* residual = nullptr;
  if (epilogue.residual) {
    residual = epilogue.residual + static_cast<size_t>(row) * epilogue.residual_stride + first;
  }
  for (int c = 0; c < columns; c += kLanes) {
    const int n = columns - c < kLanes ? columns - c : kLanes;
    const int output = panel * kPanel + c;
    Floats y = finished(epilogue, load(sums + c), output, n);
    if (epilogue.gated) {
      const Floats up = finished(epilogue, load(sums + kGates + c), output + kGates, n);
      y = gated_product(epilogue.activation, y, up);
    } else if (epilogue.activation != Activation::None) {
      y = activated(epilogue.activation, y);
    }
    if (epilogue.row_weights) {
      y = load_first(out + c, n) + y * splat(epilogue.row_weights[row]);
    } else if (residual) {
      y = y + load_first(residual + c, n);
    }
    if (n == kLanes) {
      store(out + c, y);
    } else {
      store_first(out + c, y, n);
    }
  }
}

// Whether a tile has whole vectors and needs nothing but `finish_plainly`.
inline bool is_plain(const Epilogue& epilogue, int columns) {
  const bool as_summed = !epilogue.bias && epilogue.scale == 1.0f && epilogue.cap == 0.0f;
  const Activation activation = epilogue.gated ? Activation::Silu : Activation::None;
  const bool adds_once = !(epilogue.gated && epilogue.residual);
  return as_summed && adds_once && epilogue.activation == activation && !epilogue.row_weights &&
         !epilogue.out_rows && columns % kLanes == 0;
}

// `finish_row` for plain tiles, which most are: the same operations without branches.
inline void finish_plainly(const Epilogue& epilogue, int first_row, int rows, int first,
                           int columns, const float* sums) {
  float* out = epilogue.out + static_cast<size_t>(first_row) * epilogue.out_stride + first;
  const float* residual = epilogue.residual;
  if (residual) residual += static_cast<size_t>(first_row) * epilogue.residual_stride + first;
  for (int r = 0; r < rows; ++r, sums += kPanel, out += epilogue.out_stride) {
    for (int c = 0; c < columns; c += kLanes) {
      Floats y = load(sums + c);
      if (epilogue.gated) {
        y = y * logistic(y) * load(sums + kGates + c);
      } else if (residual) {
        y = y + load(residual + c);
      }
      store(out + c, y);
    }
    if (residual) residual += epilogue.residual_stride;
  }
}

// Whether a tile has whole vectors and needs nothing but `finish_biased`.
inline bool is_biased_only(const Epilogue& epilogue, int columns) {
  return epilogue.bias && epilogue.scale == 1.0f && epilogue.cap == 0.0f && !epilogue.gated &&
         !epilogue.row_weights && !epilogue.out_rows && columns % kLanes == 0;
}

// `finish_row` for tiles of products with a bias: the same operations without branches.
template <Activation kActivation>
void finish_biased(const Epilogue& epilogue, int first_row, int rows, int panel, int columns,
                   const float* sums) {
  const int first = epilogue.first_output + panel * kPanel;
  float* out = epilogue.out + static_cast<size_t>(first_row) * epilogue.out_stride + first;
  const float* residual = epilogue.residual;
  if (residual) residual += static_cast<size_t>(first_row) * epilogue.residual_stride + first;
  for (int c = 0; c < columns; c += kLanes) {
    const Floats bias = load(epilogue.bias + panel * kPanel + c);
    if (residual) {
      for (int r = 0; r < rows; ++r) {
        const Floats y = activated(kActivation, load(sums + r * kPanel + c) + bias);
        store(out + r * epilogue.out_stride + c,
              y + load(residual + r * epilogue.residual_stride + c));
      }
    } else {
      for (int r = 0; r < rows; ++r) {
        store(out + r * epilogue.out_stride + c,
              activated(kActivation, load(sums + r * kPanel + c) + bias));
      }
    }
  }
}

// Prefetches the memory that finishing these rows will touch: other threads may have written it
// last, and it arrives while the products run.
inline void ask_for_tile(const Matrix& matrix, const Epilogue& epilogue, int first_row, int rows,
                         int panel) {
  if (epilogue.expand.ups) ask_for_ups(matrix, epilogue.expand, first_row, rows, panel);
  if (epilogue.out_rows) return;
  const int columns = panel_columns(matrix, epilogue, panel);
  const int first = epilogue.first_output + panel * (epilogue.gated ? kGates : kPanel);
  constexpr int kLine = 16;  // floats
  for (int row = first_row; row < first_row + rows; ++row) {
    const float* out = epilogue.out + static_cast<size_t>(row) * epilogue.out_stride + first;
    for (int c = 0; c < columns; c += kLine) prefetch_to_write(out + c);
    if (!epilogue.residual || epilogue.residual == epilogue.out) continue;
    const float* residual =
        epilogue.residual + static_cast<size_t>(row) * epilogue.residual_stride + first;
    for (int c = 0; c < columns; c += kLine) prefetch(residual + c);
  }
}

// Rows first_row … first_row + rows - 1 of panel `panel`: sums[r · 32 + o].
inline void finish_tile(const Matrix& matrix, const Epilogue& epilogue, int first_row, int rows,
                        int panel, float* sums) {
  if (epilogue.expand.ups) expand_tile(matrix, epilogue.expand, first_row, rows, panel, sums);
  const int columns = panel_columns(matrix, epilogue, panel);
  if (is_plain(epilogue, columns)) {
    const int first = epilogue.first_output + panel * (epilogue.gated ? kGates : kPanel);
    return finish_plainly(epilogue, first_row, rows, first, columns, sums);
  }
  if (is_biased_only(epilogue, columns)) {
    if (epilogue.activation == Activation::None)
      return finish_biased<Activation::None>(epilogue, first_row, rows, panel, columns, sums);
    if (epilogue.activation == Activation::GeluErf)
      return finish_biased<Activation::GeluErf>(epilogue, first_row, rows, panel, columns, sums);
    if (epilogue.activation == Activation::GeluTanh)
      return finish_biased<Activation::GeluTanh>(epilogue, first_row, rows, panel, columns, sums);
  }
  for (int r = 0; r < rows; ++r) {
    finish_row(epilogue, first_row + r, panel, columns, sums + r * kPanel);
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
