// Norms and rotary embeddings of whole rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/table.h"
#include "program/instruction.h"

namespace octavo {

// Normalises [rows, width] as a whole or head by head.
void normalise(const KernelTable& kernels, const NormShape& norm, const float* x, size_t x_stride,
               int rows, int width, float* out, size_t out_stride);

// A program's rotary embeddings, and their tables for the rows of the running step.
class Ropes {
 public:
  int add(std::vector<float> frequencies, bool interleaved, float magnitude);
  void reserve(size_t rows);
  size_t bytes() const;

  // Makes the tables of rows [first, end).
  void make_tables(const int32_t* positions, int first, int end);

  // Rotates `rows` rows of x, which are the step's from row `first` on. Rope -1 changes nothing.
  void rotate(const KernelTable& kernels, int rope, const int32_t* positions, float* x,
              size_t stride, int first, int rows, int width, int head_dim) const;

 private:
  struct Rope {
    std::vector<float> frequencies;
    RopeShape shape;
    std::vector<float> table;  // [rows, dimensions]
  };

  std::vector<Rope> ropes_;
};

}  // namespace octavo
