// The adapters in the slots of an engine, the rows of the running step that have one, and what
// their first matrices make of these rows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/table.h"
#include "adapters/packed_adapter.h"
#include "program/instruction.h"
#include "program/step.h"

namespace octavo {

// Rows that are shrunk together, so that an adapter's weights are read once for all of them.
constexpr int kShrinkRows = 8;

// Floats from one to the next of the rows that a thread normalises to shrink them.
inline size_t shrink_row_floats(int width) { return (static_cast<size_t>(width) + 15) / 16 * 16; }

class Adapters {
 public:
  // Makes so many empty slots; without any, the adapters of rows are ignored.
  void make_slots(int32_t slots) { slots_.resize(slots); }
  // What a slot has from the next step on; a scale multiplies all that it adds.
  void put(int32_t slot, std::shared_ptr<const PackedAdapter> adapter, float scale);

  // Finds the rows with adapters. Throws std::invalid_argument if one has a slot that is empty.
  void begin(const Step& step);
  // Whether any row of the step has an adapter.
  bool are_used() const { return !tokens_.sorted.empty(); }

  // The rows of Tokens, Wanted or Logits that have an adapter, those of one slot together.
  const std::vector<int32_t>& rows(Space space) const { return of(space).sorted; }
  // The adapter of a row; nullptr: it has none.
  const PackedAdapter* at(Space space, int row) const {
    const int32_t slot = of(space).slots[row];
    return slot < 0 ? nullptr : slots_[slot].adapter.get();
  }
  const Down& down(Space space, int row, int product) const {
    return at(space, row)->downs()[product];
  }
  float scale(Space space, int row) const { return slots_[of(space).slots[row]].scale; }
  // How many of the sorted rows from `at` on have the same slot, up to `end` and kShrinkRows.
  int run(Space space, int at, int end) const;

  Expand expand(Space space, int32_t matrix, const float* low, size_t low_stride) const {
    return {of(space).ups.data(), of(space).factors.data(), matrix, low, low_stride};
  }

 private:
  struct Slot {
    std::shared_ptr<const PackedAdapter> adapter;
    float scale = 1.0f;
  };
  struct Rows {
    std::vector<int32_t> slots;   // of each row, or -1
    std::vector<const Up*> ups;   // of each row's adapter; nullptr: it has none
    std::vector<float> factors;   // of each row's slot
    std::vector<int32_t> sorted;  // rows with adapters, by slot and then by row
  };

  const Rows& of(Space space) const {
    return space == Space::Wanted ? wanted_ : space == Space::Logits ? logits_ : tokens_;
  }
  void find(Rows& rows) const;

  std::vector<Slot> slots_;
  Rows tokens_, wanted_, logits_;
};

}  // namespace octavo
