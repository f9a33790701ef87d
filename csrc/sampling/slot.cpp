// One slot: how its sequence's tokens are drawn, and what has been drawn so far.
#include "sampling/slot.h"

#include <utility>

namespace octavo {

void TokenCounts::clear() {
  places_.clear();
  ids_.clear();
  counts_.clear();
}

void TokenCounts::add(int32_t token, float occurrences) {
  const auto [found, is_new] = places_.try_emplace(token, static_cast<int32_t>(ids_.size()));
  if (is_new) {
    ids_.push_back(token);
    counts_.push_back(0.0f);
  }
  counts_[found->second] += occurrences;
}

void Slot::open(SlotSampling sampling) {
  close();
  sampling_ = std::move(sampling);
  // The prompt counts only for repetition, which asks whether a token was seen at all.
  if (sampling_.repetition != 1.0f)
    for (int32_t i = 0; i < sampling_.num_prompt; ++i) seen_.add(sampling_.tokens[i], 0.0f);
  for (size_t i = sampling_.num_prompt; i < sampling_.tokens.size(); ++i)
    append(sampling_.tokens[i]);
  if (!sampling_.tokens.empty()) last_ = sampling_.tokens.back();
  sampling_.tokens = {};
  is_open_ = true;
}

void Slot::close() { *this = Slot(); }

void Slot::append(int32_t token) {
  if (sampling_.has_penalties()) seen_.add(token, 1.0f);
  if (!sampling_.bad_words.empty() || sampling_.has_processors) output_.push_back(token);
  last_ = token;
  ++num_output_;
}

}  // namespace octavo
