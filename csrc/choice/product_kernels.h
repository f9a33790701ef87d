// Which kernels compute the products of a program, by the weights' format and the number of rows.
//
// All kernels that may compute one product give equal bits, so the choice can change between steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

namespace octavo {

// Numbers of rows for which one choice holds: each class ends with the rows of its place here, and
// the last one has no end.
constexpr std::array<int, 3> kRowClassEnds = {1, 4, 12};
constexpr int kRowClasses = kRowClassEnds.size() + 1;

constexpr int row_class_of(int rows) {
  int number = 0;
  for (const int end : kRowClassEnds) number += rows > end;
  return number;
}

class ProductKernels {
 public:
  // All products by one tier's kernels, at the default distance.
  explicit ProductKernels(const KernelTable& kernels);

  // Throws std::invalid_argument if these kernels could give other bits than the first ones, or
  // read other prepared rows.
  void choose(Format format, int row_class, const KernelTable& kernels, int ahead);

  void gemm(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
            int end_panel, uint8_t* scratch, const Epilogue& epilogue) const;

 private:
  struct Choice {
    const KernelTable* kernels;
    int ahead;
  };

  const KernelTable& first_;
  std::array<std::array<Choice, kRowClasses>, kFormats> choices_;
};

}  // namespace octavo
