// Changes a row of logits by a slot's rules, in place, so that it can be drawn from and restored.
//
// In this order: allowed ids, bad words, min_tokens, bias, processors, penalties, DRY, mask, with
// the float arithmetic of the reference (octavo/backends/torch). A token that must not be drawn
// gets the least float instead of -infinity, which kernels take for a damaged row; no noise makes
// up for it.
#pragma once

#include <cfloat>
#include <cstdint>
#include <utility>
#include <vector>

#include "sampling/dry.h"
#include "sampling/slot.h"

namespace octavo {

constexpr float kForbidden = -FLT_MAX;

// A row that is edited in place.
class EditedRow {
 public:
  explicit EditedRow(std::vector<std::pair<int32_t, float>>& undo) : undo_(undo) { undo_.clear(); }

  // Begins with these logits. Edits of a row that is `kept` can be undone.
  void begin(float* logits, bool kept);
  float* logits() const { return logits_; }
  float at(int32_t id) const { return logits_[id]; }

  void set(int32_t id, float value);
  void forbid(int32_t id) { set(id, kForbidden); }
  // Whether an edit met a logit that is not finite. It is left as it is.
  bool is_damaged() const { return is_damaged_; }
  void restore();

 private:
  std::vector<std::pair<int32_t, float>>& undo_;
  float* logits_ = nullptr;
  bool kept_ = false;
  bool is_damaged_ = false;
};

// The tokens that allowed ids and a mask leave, if those are few; then only they are looked at.
// `mask` has a bit for each token, or is null. Returns whether they are few.
bool find_candidates(const SlotSampling& sampling, const uint32_t* mask, int vocabulary,
                     std::vector<int32_t>& candidates);
// Forbids the tokens that a mask does not allow.
void forbid_masked(const uint32_t* mask, int vocabulary, EditedRow& row);

// Whether a mask allows every token.
bool allows_all(const uint32_t* mask, int vocabulary);

// The rules before a user's processors, and those after them. `by_candidates`: nothing but the
// candidates will be looked at, which allowed ids and the mask have chosen.
void apply_first_rules(const Slot& slot, int vocabulary, bool by_candidates, EditedRow& row);
void apply_last_rules(const Slot& slot, const uint32_t* mask, int vocabulary, bool by_candidates,
                      EditedRow& row, DryScratch& scratch);

}  // namespace octavo
