// The adapters in the slots of an engine, and the rows of the running step that have one.
#include "adapters/adapters.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace octavo {

void Adapters::put(int32_t slot, std::shared_ptr<const PackedAdapter> adapter, float scale) {
  if (slot < 0 || slot >= static_cast<int32_t>(slots_.size()))
    throw std::invalid_argument("there is no slot " + std::to_string(slot) + " for adapters");
  slots_[slot] = {std::move(adapter), scale};
}

void Adapters::begin(const Step& step) {
  for (Rows* rows : {&tokens_, &wanted_, &logits_}) {
    rows->slots.clear();
    rows->ups.clear();
    rows->factors.clear();
    rows->sorted.clear();
  }
  const int32_t* slots = step.inputs().adapters;
  if (slots_.empty() || !slots) return;
  const int count = step.inputs().num_rows;
  for (int row = 0; row < count; ++row)
    if (slots[row] >= static_cast<int32_t>(slots_.size()) ||
        (slots[row] >= 0 && !slots_[slots[row]].adapter))
      throw std::invalid_argument("row " + std::to_string(row) + " has the adapter of slot " +
                                  std::to_string(slots[row]) + ", in which there is none");
  tokens_.slots.assign(slots, slots + count);
  find(tokens_);
  if (tokens_.sorted.empty()) return;
  for (const int32_t row : step.wanted_rows()) wanted_.slots.push_back(slots[row]);
  find(wanted_);
  for (int row = 0; row < step.inputs().num_logits; ++row)
    logits_.slots.push_back(slots[step.inputs().logits_rows[row]]);
  find(logits_);
}

void Adapters::find(Rows& rows) const {
  for (size_t row = 0; row < rows.slots.size(); ++row) {
    const int32_t slot = rows.slots[row];
    rows.ups.push_back(slot < 0 ? nullptr : slots_[slot].adapter->ups());
    rows.factors.push_back(slot < 0 ? 0.0f : slots_[slot].scale);
    if (slot >= 0) rows.sorted.push_back(static_cast<int32_t>(row));
  }
  std::stable_sort(rows.sorted.begin(), rows.sorted.end(),
                   [&](int32_t a, int32_t b) { return rows.slots[a] < rows.slots[b]; });
}

int Adapters::run(Space space, int at, int end) const {
  const Rows& rows = of(space);
  const int32_t slot = rows.slots[rows.sorted[at]];
  int count = 1;
  while (count < kShrinkRows && at + count < end && rows.slots[rows.sorted[at + count]] == slot)
    ++count;
  return count;
}

}  // namespace octavo
