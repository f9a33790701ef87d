// Tensors that rows are made of, as Python passes them, checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pack/group_tensors.h"

namespace octavo {

// In Python it keeps its arrays alive.
struct RowTensors {
  GroupTensors made_of;
  int rows;
};

// The place of each row. A number is 0 for a row of zeros; else its upper half is the number of
// one of the tensors, from 1, and its lower half that of the row. Throws where there is none.
std::vector<RowPlace> row_places(const uint64_t* numbers, size_t count,
                                 const std::vector<const RowTensors*>& tensors, size_t row_bytes);

}  // namespace octavo
