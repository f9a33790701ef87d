// The frame of a step, as it goes from stage to stage.
#pragma once

#include <cstdint>

#include "program/step.h"

namespace octavo {

// What a frame of a step begins with. Its copies, arrays and rows follow.
struct Sizes {
  int32_t rows, sequences, table_width, groups, logits, hidden, has_types, copies, width;

  bool are_possible() const {
    for (const int32_t each : {rows, sequences, table_width, groups, logits, hidden, copies, width})
      if (each < 0) return false;
    return copies % 3 == 0;
  }
};

// Calls each(array, count) for the numbers of a step, in the order in which they are sent.
template <typename Each>
void for_each_array(const Sizes& sizes, StepInputs& step, Each each) {
  each(step.token_ids, int64_t{sizes.rows});
  each(step.positions, int64_t{sizes.rows});
  if (sizes.has_types) each(step.types, int64_t{sizes.rows});
  each(step.row_starts, int64_t{sizes.sequences} + 1);
  for (const int32_t*& table : step.tables)
    each(table, int64_t{sizes.sequences} * sizes.table_width);
  each(step.logits_rows, int64_t{sizes.logits});
  each(step.hidden_rows, int64_t{sizes.hidden});
}

}  // namespace octavo
