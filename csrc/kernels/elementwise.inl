// Operations on rows between matrix products: norms, rotations, activations, sums.
//
// Each row is processed by itself, in vectors from its beginning: its bits depend on it alone.
#include "kernels/math.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Calls `work(x, y)` on every vector of a row; the last one is padded with zeros.
template <typename Work>
inline void over_row(const float* x, const float* y, int size, float* out, Work work) {
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) store(out + at, work(load(x + at), load(y + at)));
  if (at == size) return;
  const int rest = size - at;
  store_first(out + at, work(load_first(x + at, rest), load_first(y + at, rest)), rest);
}

// The sum of `term` over a row, in sixteen columns that are added up last: in every tier alike.
template <typename Term>
inline float sum_over(const float* x, int size, Term term) {
  constexpr int kColumns = 16, kVectors = kColumns / kLanes;
  Floats sums[kVectors];
  for (Floats& sum : sums) sum = splat(0.0f);
  int at = 0;
  for (; at + kColumns <= size; at += kColumns)
    for (int vector = 0; vector < kVectors; ++vector)
      sums[vector] = sums[vector] + term(load(x + at + vector * kLanes));
  float columns[kColumns];
  for (int vector = 0; vector < kVectors; ++vector) store(columns + vector * kLanes, sums[vector]);
  for (int column = 0; at < size; ++at, ++column) {
    float one[kLanes];
    store(one, term(splat(x[at])));
    columns[column] += one[0];
  }
  for (int half = kColumns / 2; half > 0; half /= 2)
    for (int column = 0; column < half; ++column) columns[column] += columns[column + half];
  return columns[0];
}

void rms_norm(const float* x, size_t x_stride, int rows, int size, const float* weight, float eps,
              float offset, float* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    const float squares = sum_over(x, size, [](Floats v) { return v * v; });
    const float factor = 1.0f / __builtin_sqrtf(squares / size + eps);
    over_row(x, weight, size, out, [=](Floats v, Floats w) {
      return v * splat(factor) * (splat(offset) + w);
    });
  }
}

void layer_norm(const float* x, size_t x_stride, int rows, int size, const float* weight,
                const float* bias, float eps, float* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    const float mean = sum_over(x, size, [](Floats v) { return v; }) / size;
    const float squares = sum_over(x, size, [=](Floats v) {
      return (v - splat(mean)) * (v - splat(mean));
    });
    const float factor = 1.0f / __builtin_sqrtf(squares / size + eps);
    over_row(x, weight, size, out, [=](Floats v, Floats w) {
      return (v - splat(mean)) * splat(factor) * w;
    });
    if (bias) over_row(out, bias, size, out, [](Floats v, Floats b) { return v + b; });
  }
}

// Rotates a head's pairs, whose members are half of the dimensions apart.
inline void turn_halves(float* x, int half, const float* cosines, const float* sines) {
  for (int at = 0; at < half; at += kLanes) {
    const int n = half - at < kLanes ? half - at : kLanes;
    const Floats a = load_first(x + at, n), b = load_first(x + half + at, n);
    const Floats cosine = load_first(cosines + at, n), sine = load_first(sines + at, n);
    store_first(x + at, a * cosine - b * sine, n);
    store_first(x + half + at, b * cosine + a * sine, n);
  }
}

// Row r of `tables` holds the cosines of its angles, then the sines, magnitude included.
void rope(float* x, size_t x_stride, int rows, int heads, int head_dim, const int32_t*,
          const RopeShape& shape, const float* tables) {
  const int half = shape.dimensions / 2;
  for (int row = 0; row < rows; ++row) {
    const float* cosines = tables + static_cast<size_t>(row) * shape.dimensions;
    const float* sines = cosines + half;
    for (int head = 0; head < heads; ++head) {
      float* one = x + row * x_stride + static_cast<size_t>(head) * head_dim;
      if (!shape.interleaved) {
        turn_halves(one, half, cosines, sines);
        continue;
      }
      for (int pair = 0; pair < half; ++pair, one += 2) {
        const float a = one[0], b = one[1];
        one[0] = a * cosines[pair] - b * sines[pair];
        one[1] = b * cosines[pair] + a * sines[pair];
      }
    }
  }
}

void activate(Activation activation, float* x, size_t x_stride, int rows, int size) {
  for (int row = 0; row < rows; ++row, x += x_stride)
    over_row(x, x, size, x, [=](Floats v, Floats) { return activated(activation, v); });
}

void gate(Activation activation, const float* gate, const float* up, size_t stride, int rows,
          int size, float* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row, gate += stride, up += stride, out += out_stride)
    over_row(gate, up, size, out,
             [=](Floats g, Floats u) { return gated_product(activation, g, u); });
}

void add(const float* x, const float* y, size_t x_stride, size_t y_stride, int rows, int size,
         float* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row, x += x_stride, y += y_stride, out += out_stride)
    over_row(x, y, size, out, [](Floats a, Floats b) { return a + b; });
}

void multiply(const float* x, const float* y, size_t x_stride, size_t y_stride,
              bool y_is_one_column, int rows, int size, float* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row, x += x_stride, y += y_stride, out += out_stride) {
    if (y_is_one_column) {
      const float factor = *y;
      over_row(x, x, size, out, [=](Floats a, Floats) { return a * splat(factor); });
    } else {
      over_row(x, y, size, out, [](Floats a, Floats b) { return a * b; });
    }
  }
}

void scale(const float* x, size_t x_stride, float factor, int rows, int size, float* out,
           size_t out_stride) {
  for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride)
    over_row(x, x, size, out, [=](Floats a, Floats) { return a * splat(factor); });
}

void soft_cap(float* x, size_t x_stride, float cap, int rows, int size) {
  for (int row = 0; row < rows; ++row, x += x_stride)
    over_row(x, x, size, x, [=](Floats a, Floats) {
      return hyperbolic_tangent(a / splat(cap)) * splat(cap);
    });
}

void add_elementwise(KernelTable& table) {
  table.rms_norm = rms_norm;
  table.layer_norm = layer_norm;
  table.rope = rope;
  table.activate = activate;
  table.gate = gate;
  table.add = add;
  table.multiply = multiply;
  table.scale = scale;
  table.soft_cap = soft_cap;
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
