// Changes a row of logits by a slot's rules.
#include "sampling/rules.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace octavo {

namespace {

// Up to this part of the vocabulary, candidates are gathered.
constexpr int kFewParts = 8;
constexpr int kWordBits = 32;

bool is_set(const uint32_t* mask, int32_t id) {
  return mask[id / kWordBits] >> (id % kWordBits) & 1u;
}

// The bits of word `index` that stand for tokens of the vocabulary.
uint32_t word_of(const uint32_t* mask, int index, int vocabulary) {
  const int left = vocabulary - index * kWordBits;
  return left >= kWordBits ? mask[index] : mask[index] & ((1u << left) - 1);
}

int num_words(int vocabulary) { return (vocabulary + kWordBits - 1) / kWordBits; }

int count_set(const uint32_t* mask, int vocabulary) {
  int count = 0;
  for (int index = 0; index < num_words(vocabulary); ++index)
    count += std::popcount(word_of(mask, index, vocabulary));
  return count;
}

bool are_few(size_t count, int vocabulary) {
  return count <= static_cast<size_t>(vocabulary) / kFewParts;
}

bool ends_with(const std::vector<int32_t>& output, const int32_t* begin, size_t count) {
  return output.size() >= count && std::equal(begin, begin + count, output.end() - count);
}

void forbid_others(const std::vector<int32_t>& allowed, int vocabulary, EditedRow& row) {
  size_t next = 0;
  for (int32_t id = 0; id < vocabulary; ++id) {
    if (next < allowed.size() && allowed[next] == id) ++next;
    else row.forbid(id);
  }
}

void apply_penalties(const SlotSampling& sampling, const TokenCounts& seen, EditedRow& row) {
  for (size_t place = 0; place < seen.size(); ++place) {
    const int32_t id = seen.id(place);
    float value = row.at(id);
    if (value == kForbidden) continue;
    if (sampling.repetition != 1.0f)
      value = value > 0.0f ? value / sampling.repetition : value * sampling.repetition;
    const float count = seen.count(place);
    value -= sampling.frequency * count;
    if (count > 0.0f) value -= sampling.presence;
    row.set(id, value);
  }
}

}  // namespace

void forbid_masked(const uint32_t* mask, int vocabulary, EditedRow& row) {
  for (int index = 0; index < num_words(vocabulary); ++index) {
    const int begin = index * kWordBits, left = vocabulary - begin;
    const uint32_t all = left >= kWordBits ? ~0u : (1u << left) - 1;
    for (uint32_t bits = ~mask[index] & all; bits; bits &= bits - 1)
      row.forbid(begin + std::countr_zero(bits));
  }
}

void EditedRow::begin(float* logits, bool kept) {
  undo_.clear();
  logits_ = logits;
  kept_ = kept;
  is_damaged_ = false;
}

void EditedRow::set(int32_t id, float value) {
  const float before = logits_[id];
  if (!std::isfinite(before)) {
    is_damaged_ = true;
    return;
  }
  if (kept_) undo_.emplace_back(id, before);
  // A penalty may lead beyond what floats hold, which is no damage.
  logits_[id] = std::clamp(value, -FLT_MAX, FLT_MAX);
}

void EditedRow::restore() {
  for (; !undo_.empty(); undo_.pop_back()) logits_[undo_.back().first] = undo_.back().second;
}

bool find_candidates(const SlotSampling& sampling, const uint32_t* mask, int vocabulary,
                     std::vector<int32_t>& candidates) {
  candidates.clear();
  if (sampling.has_allowed && are_few(sampling.allowed.size(), vocabulary)) {
    for (const int32_t id : sampling.allowed)
      if (!mask || is_set(mask, id)) candidates.push_back(id);
    return true;
  }
  // With both, and neither of them short, the row is edited.
  if (!mask || sampling.has_allowed || !are_few(count_set(mask, vocabulary), vocabulary))
    return false;
  for (int index = 0; index < num_words(vocabulary); ++index)
    for (uint32_t bits = word_of(mask, index, vocabulary); bits; bits &= bits - 1)
      candidates.push_back(index * kWordBits + std::countr_zero(bits));
  return true;
}

bool allows_all(const uint32_t* mask, int vocabulary) {
  return count_set(mask, vocabulary) == vocabulary;
}

void apply_first_rules(const Slot& slot, int vocabulary, bool by_candidates, EditedRow& row) {
  const SlotSampling& sampling = slot.sampling();
  if (sampling.has_allowed && !by_candidates) forbid_others(sampling.allowed, vocabulary, row);
  for (const std::vector<int32_t>& word : sampling.bad_words)
    if (ends_with(slot.output(), word.data(), word.size() - 1)) row.forbid(word.back());
  if (slot.num_output() < sampling.min_tokens)
    for (const int32_t id : sampling.stop_ids) row.forbid(id);
  for (size_t i = 0; i < sampling.bias_ids.size(); ++i) {
    const int32_t id = sampling.bias_ids[i];
    if (row.at(id) != kForbidden) row.set(id, row.at(id) + sampling.bias[i]);
  }
}

void apply_last_rules(const Slot& slot, const uint32_t* mask, int vocabulary, bool by_candidates,
                      EditedRow& row, DryScratch& scratch) {
  if (slot.has_last_rules()) {
    if (slot.sampling().has_penalties()) apply_penalties(slot.sampling(), slot.seen(), row);
    if (slot.sampling().dry.multiplier > 0.0)
      apply_dry(slot.sampling().dry, slot.history(), row, scratch);
  }
  if (mask && !by_candidates) forbid_masked(mask, vocabulary, row);
}

}  // namespace octavo
