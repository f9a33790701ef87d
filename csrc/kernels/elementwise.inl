// What is done to rows between matrix products: norms, rotations, activations, sums.
//
// A row at a time, in vectors of sixteen from its beginning: its bits depend on it alone.
#include <cmath>

#include "kernels/math.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// `work(x, y)` on every sixteen of a row; what is left over is filled up with zeros.
template <typename Work>
inline void over_row(const float* x, const float* y, int size, float* out, Work work) {
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) store(out + at, work(load(x + at), load(y + at)));
  if (at < size) {
    const int rest = size - at;
    store_some(out + at, work(load_some(x + at, rest), load_some(y + at, rest)), rest);
  }
}

template <typename Term>
inline float sum_over(const float* x, int size, Term term) {
  Floats total{};
  int at = 0;
  for (; at + kLanes <= size; at += kLanes) total += term(load(x + at));
  float rest[kLanes] = {};
  if (at < size) {
    store(rest, term(load_some(x + at, size - at)));
    for (int lane = size - at; lane < kLanes; ++lane) rest[lane] = 0.0f;
    total += load(rest);
  }
  return sum(total);
}

void rms_norm(const float* x, size_t x_stride, int rows, int size, const float* weight, float eps,
              float offset, float* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    const float squares = sum_over(x, size, [](Floats v) { return v * v; });
    const float factor = 1.0f / std::sqrt(squares / size + eps);
    over_row(x, weight, size, out, [=](Floats v, Floats w) { return v * factor * (offset + w); });
  }
}

void layer_norm(const float* x, size_t x_stride, int rows, int size, const float* weight,
                const float* bias, float eps, float* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    const float mean = sum_over(x, size, [](Floats v) { return v; }) / size;
    const float squares = sum_over(x, size, [=](Floats v) { return (v - mean) * (v - mean); });
    const float factor = 1.0f / std::sqrt(squares / size + eps);
    over_row(x, weight, size, out, [=](Floats v, Floats w) { return (v - mean) * factor * w; });
    if (bias) over_row(out, bias, size, out, [](Floats v, Floats b) { return v + b; });
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
      const int apart = shape.interleaved ? 1 : half, step = shape.interleaved ? 2 : 1;
      float* other = one + apart;
      for (int pair = 0; pair < half; ++pair, one += step, other += step) {
        const float a = *one, b = *other;
        *one = a * cosines[pair] - b * sines[pair];
        *other = b * cosines[pair] + a * sines[pair];
      }
    }
  }
}

inline Floats activated(Activation activation, Floats x) {
  switch (activation) {
    case Activation::None: return x;
    case Activation::Silu: return x * sigmoid(x);
    case Activation::Sigmoid: return sigmoid(x);
    case Activation::GeluErf:
      return x * 0.5f * (1.0f + error_function(x * 0.707106781f));
    case Activation::GeluTanh: {
      const Floats inner = 0.797884561f * (x + 0.044715f * x * x * x);
      return x * 0.5f * (1.0f + hyperbolic_tangent(inner));
    }
    case Activation::Relu: return select(x < Floats{}, Floats{}, x);
    case Activation::Relu2: {
      const Floats positive = select(x < Floats{}, Floats{}, x);
      return positive * positive;
    }
    case Activation::ClampedSwiglu: break;  // is of two values: see `gated`
  }
  return x;
}

inline Floats gated(Activation activation, Floats gate, Floats up) {
  if (activation != Activation::ClampedSwiglu) return activated(activation, gate) * up;
  const Floats limit = splat(7.0f);  // gpt-oss' own
  gate = select(gate > limit, limit, gate);
  up = select(up > limit, limit, select(up < -limit, -limit, up));
  return (up + 1.0f) * gate * sigmoid(gate * 1.702f);
}

void activate(Activation activation, float* x, size_t x_stride, int rows, int size) {
  for (int row = 0; row < rows; ++row, x += x_stride)
    over_row(x, x, size, x, [=](Floats v, Floats) { return activated(activation, v); });
}

void gate(Activation activation, const float* gate, const float* up, size_t stride, int rows,
          int size, float* out, size_t out_stride) {
  for (int row = 0; row < rows; ++row, gate += stride, up += stride, out += out_stride)
    over_row(gate, up, size, out, [=](Floats g, Floats u) { return gated(activation, g, u); });
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
      over_row(x, x, size, out, [=](Floats a, Floats) { return a * factor; });
    } else {
      over_row(x, y, size, out, [](Floats a, Floats b) { return a * b; });
    }
  }
}

void scale(const float* x, size_t x_stride, float factor, int rows, int size, float* out,
           size_t out_stride) {
  for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride)
    over_row(x, x, size, out, [=](Floats a, Floats) { return a * factor; });
}

void soft_cap(float* x, size_t x_stride, float cap, int rows, int size) {
  for (int row = 0; row < rows; ++row, x += x_stride)
    over_row(x, x, size, x, [=](Floats a, Floats) { return hyperbolic_tangent(a / cap) * cap; });
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
