// Which rank computes which rows of which expert, where each rank has whole experts of a mixture.
//
// Each expert has an owner. Beside these, ranks have slots for copies of experts that others own:
// the rows of an expert with a copy are divided between both. All ranks see the same pairs, and so
// find the same parts, and the same experts to copy, without a message. Numbers are whole, and no
// bits of results depend on them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/workers.h"

namespace octavo {

// Pairs [first, first + rows) of an expert, as sorted, for one rank.
struct ExpertPart {
  int32_t expert = 0;
  int32_t first = 0, rows = 0;
  int32_t slot = -1;  // whose copy of the expert multiplies them; -1: the expert itself
};

class ExpertBalance {
 public:
  // Throws std::invalid_argument unless all are positive, but `slots`, which may be 0.
  ExpertBalance(int experts, int ranks, int slots);

  int owner(int expert) const { return owners_[expert]; }
  int holder(int slot) const { return slot % ranks_; }
  int slots() const { return static_cast<int>(in_slot_.size()); }
  // The expert whose copy a slot has; -1: none.
  int expert_in(int slot) const { return in_slot_[slot]; }

  // A rank's parts of a step in which the pairs of expert e begin at starts[e].
  std::vector<ExpertPart> parts(const std::vector<int32_t>& starts, int rank) const;

  // Counts the pairs of a step.
  void count(const std::vector<int32_t>& starts);

  struct Copy {
    int32_t slot, expert;
  };
  // The copy that would relieve the ranks with most to do by enough; then counts are halved, so
  // that those of old steps matter less.
  std::optional<Copy> choose();
  // Sets what a slot has; -1: nothing that may be used.
  void put(int slot, int expert);

 private:
  using Loads = std::vector<int64_t>;  // of the ranks, in rows

  void divide(int expert, const std::vector<int32_t>& starts, Loads& loads, int rank,
              std::vector<ExpertPart>& parts) const;
  int64_t relief(int expert, int64_t copies) const;

  const int experts_, ranks_;
  std::vector<int32_t> in_slot_;
  // Of each expert: its owner, and the slots that have a copy of it, in their order.
  std::vector<int32_t> owners_;
  std::vector<std::vector<int32_t>> slots_with_;
  std::vector<int64_t> counts_;  // pairs of each expert
};

}  // namespace octavo
