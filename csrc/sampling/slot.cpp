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

void TokenCounts::remove(int32_t token) {
  const auto found = places_.find(token);
  const int32_t place = found->second;
  places_.erase(found);
  if (ids_.back() != token) places_[ids_.back()] = place;
  ids_[place] = ids_.back();
  counts_[place] = counts_.back();
  ids_.pop_back();
  counts_.pop_back();
}

void CountedWindow::add(int32_t token, float occurrences, int64_t size, TokenCounts& counts) {
  tokens_.emplace_back(token, occurrences);
  ++seen_[token];
  counts.add(token, occurrences);
  if (static_cast<int64_t>(tokens_.size()) <= size) return;
  const auto [oldest, counted] = tokens_.front();
  tokens_.pop_front();
  counts.add(oldest, -counted);
  const auto found = seen_.find(oldest);
  if (--found->second > 0) return;
  seen_.erase(found);
  counts.remove(oldest);
}

void Slot::open(SlotSampling sampling) {
  close();
  sampling_ = std::move(sampling);
  has_filters_ = sampling_.has_filters();
  has_last_rules_ = sampling_.has_penalties() || sampling_.dry.multiplier > 0.0;
  is_followed_ = has_last_rules_ || !sampling_.bad_words.empty() || sampling_.has_processors;
  // The prompt counts only for repetition, which asks whether a token was seen at all.
  if (sampling_.repetition != 1.0f)
    for (int32_t i = 0; i < sampling_.num_prompt; ++i) count(sampling_.tokens[i], 0.0f);
  if (sampling_.dry.multiplier > 0.0)
    for (int32_t i = 0; i < sampling_.num_prompt; ++i) remember(sampling_.tokens[i]);
  for (size_t i = sampling_.num_prompt; i < sampling_.tokens.size(); ++i)
    append(sampling_.tokens[i]);
  if (!sampling_.tokens.empty()) last_ = sampling_.tokens.back();
  sampling_.tokens = {};
  is_open_ = true;
}

void Slot::close() { *this = Slot(); }

void Slot::append(int32_t token) {
  if (is_followed_) follow(token);
  last_ = token;
  ++num_output_;
}

void Slot::follow_surprise(double surprise) {
  Mirostat& mirostat = sampling_.mirostat;
  mirostat.mu -= mirostat.eta * (surprise - mirostat.tau);
}

void Slot::follow(int32_t token) {
  if (sampling_.has_penalties()) count(token, 1.0f);
  if (sampling_.dry.multiplier > 0.0) remember(token);
  if (!sampling_.bad_words.empty() || sampling_.has_processors) output_.push_back(token);
}

void Slot::count(int32_t token, float occurrences) {
  if (sampling_.penalty_window > 0)
    window_.add(token, occurrences, sampling_.penalty_window, seen_);
  else seen_.add(token, occurrences);
}

// Older tokens leave many at a time, so that few are moved for each new one.
void Slot::remember(int32_t token) {
  const size_t window = static_cast<size_t>(sampling_.dry.window);
  if (history_.size() >= 2 * window + 64)
    history_.erase(history_.begin(), history_.end() - static_cast<std::ptrdiff_t>(window));
  history_.push_back(token);
}

}  // namespace octavo
