// Norms and rotary embeddings of whole rows.
#include "program/rows.h"

#include <cmath>
#include <utility>

namespace octavo {

void normalise(const KernelTable& kernels, const NormShape& norm, const float* x, size_t x_stride,
               int rows, int width, float* out, size_t out_stride) {
  const auto one = [&](const float* from, size_t from_stride, int count, int size, int head,
                       float* to, size_t to_stride) {
    const size_t weights = norm.weight_a_head ? static_cast<size_t>(head) * size : 0;
    if (norm.is_rms)
      kernels.rms_norm(from, from_stride, count, size, norm.weight + weights, norm.eps,
                       norm.offset, to, to_stride);
    else
      kernels.layer_norm(from, from_stride, count, size, norm.weight + weights,
                         norm.bias ? norm.bias + weights : nullptr, norm.eps, to, to_stride);
  };
  const int heads = norm.heads, size = width / heads;
  if (heads == 1) return one(x, x_stride, rows, width, 0, out, out_stride);
  for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    if (!norm.weight_a_head) {
      one(x, size, heads, size, 0, out, size);
      continue;
    }
    for (int head = 0; head < heads; ++head)
      one(x + head * size, size, 1, size, head, out + head * size, size);
  }
}

int Ropes::add(std::vector<float> frequencies, bool interleaved, float magnitude) {
  // The kernels read the tables, never the frequencies.
  const RopeShape shape{nullptr, static_cast<int32_t>(frequencies.size()) * 2, interleaved,
                        magnitude};
  ropes_.push_back({std::move(frequencies), shape, {}});
  return static_cast<int>(ropes_.size()) - 1;
}

void Ropes::reserve(size_t rows) {
  for (Rope& rope : ropes_)
    if (rope.table.size() < rows * rope.shape.dimensions)
      rope.table.resize(rows * rope.shape.dimensions);
}

size_t Ropes::bytes() const {
  size_t bytes = 0;
  for (const Rope& rope : ropes_) bytes += rope.table.size() * sizeof(float);
  return bytes;
}

void Ropes::make_tables(const int32_t* positions, int first, int end) {
  for (Rope& rope : ropes_) {
    const int half = rope.shape.dimensions / 2;
    for (int row = first; row < end; ++row) {
      float* cosines = rope.table.data() + static_cast<size_t>(row) * rope.shape.dimensions;
      for (int pair = 0; pair < half; ++pair) {
        // Models were trained with the angle rounded to fp32; its cosine is as exact as a double.
        const double angle = static_cast<float>(positions[row]) * rope.frequencies[pair];
        cosines[pair] = static_cast<float>(std::cos(angle)) * rope.shape.magnitude;
        cosines[half + pair] = static_cast<float>(std::sin(angle)) * rope.shape.magnitude;
      }
    }
  }
}

void Ropes::rotate(const KernelTable& kernels, int rope, const int32_t* positions, float* x,
                   size_t stride, int first, int rows, int width, int head_dim) const {
  if (rope < 0) return;
  const RopeShape& shape = ropes_[rope].shape;
  kernels.rope(x, stride, rows, width / head_dim, head_dim, positions + first, shape,
               ropes_[rope].table.data() + static_cast<size_t>(first) * shape.dimensions);
}

}  // namespace octavo
