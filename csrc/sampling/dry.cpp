// DRY: penalties for tokens that would continue a repetition of the last tokens.
#include "sampling/dry.h"

#include <algorithm>

#include "sampling/rules.h"

namespace octavo {

namespace {

constexpr int32_t kMostRepeated = 50;  // MAX_REPEATED of octavo/core/parameters/samplers.py
constexpr double kMostPenalty = 1e6;

bool is_breaker(const Dry& dry, int32_t token) {
  return std::find(dry.breakers.begin(), dry.breakers.end(), token) != dry.breakers.end();
}

// For each place of a window that is read backwards from `last`, how many tokens from there on are
// those from the window's end on (the Z function): repeated[0] is not set.
void find_repeated(const int32_t* last, int32_t size, std::vector<int32_t>& repeated) {
  repeated.resize(size);
  int32_t begin = 0, end = 0;  // the repetition that reaches furthest
  for (int32_t i = 1; i < size; ++i) {
    int32_t same = i < end ? std::min(end - i, repeated[i - begin]) : 0;
    while (i + same < size && last[-same] == last[-(i + same)]) ++same;
    if (i + same > end) {
      begin = i;
      end = i + same;
    }
    repeated[i] = same;
  }
}

}  // namespace

void apply_dry(const Dry& dry, const std::vector<int32_t>& history, EditedRow& row,
               DryScratch& scratch) {
  const int32_t size = static_cast<int32_t>(
      std::min(history.size(), static_cast<size_t>(dry.window)));
  if (size == 0) return;
  const int32_t* last = history.data() + history.size() - 1;
  int32_t free = 0;  // tokens behind the nearest breaker
  while (free < std::min(size, kMostRepeated) && !is_breaker(dry, last[-free])) ++free;
  if (free < dry.allowed) return;
  find_repeated(last, size, scratch.repeated);
  scratch.continuing.clear();
  for (int32_t i = 1; i < size; ++i) {
    const int32_t repeated = std::min(scratch.repeated[i], free);
    if (repeated < dry.allowed) continue;
    const int32_t token = last[-(i - 1)];
    if (token >= static_cast<int32_t>(scratch.longest.size())) scratch.longest.resize(token + 1);
    uint8_t& longest = scratch.longest[token];
    if (longest == 0) scratch.continuing.push_back(token);
    longest = std::max(longest, static_cast<uint8_t>(repeated));
  }
  double penalties[kMostRepeated + 1];
  double penalty = dry.multiplier;
  for (int32_t repeated = dry.allowed; repeated <= free; ++repeated, penalty *= dry.base)
    penalties[repeated] = std::min(penalty, kMostPenalty);
  for (const int32_t token : scratch.continuing) {
    const int32_t longest = scratch.longest[token];
    scratch.longest[token] = 0;
    if (row.at(token) == kForbidden || is_breaker(dry, token)) continue;
    row.set(token, row.at(token) - static_cast<float>(penalties[longest]));
  }
}

}  // namespace octavo
