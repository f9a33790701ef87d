// The division of a mixture's rows among ranks that have whole experts.
#include "experts/balance.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace octavo {

namespace {

// To read an expert's weights takes about as long as to multiply so many rows with them.
constexpr int kRowsOfReading = 16;
// A copy is replaced if another one relieves the ranks by so much more: three halves.
constexpr int kGainOf = 3, kGainOver = 2;

int64_t cost(int64_t rows) { return rows == 0 ? 0 : rows + kRowsOfReading; }

}  // namespace

ExpertBalance::ExpertBalance(int experts, int ranks, int slots)
    : experts_(experts), ranks_(ranks) {
  if (experts < 1 || ranks < 1 || slots < 0)
    throw std::invalid_argument("whole experts need an expert and a rank");
  in_slot_.assign(slots, -1);
  slots_with_.resize(experts);
  counts_.assign(experts, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    int first, end;
    share_of(rank, ranks, experts, first, end);
    owners_.resize(end, rank);
  }
}

void ExpertBalance::put(int slot, int expert) {
  if (const int32_t before = in_slot_[slot]; before >= 0) {
    std::vector<int32_t>& its = slots_with_[before];
    its.erase(std::find(its.begin(), its.end(), slot));
  }
  in_slot_[slot] = expert;
  if (expert < 0) return;
  std::vector<int32_t>& its = slots_with_[expert];
  its.insert(std::lower_bound(its.begin(), its.end(), slot), slot);
}

std::vector<ExpertPart> ExpertBalance::parts(const std::vector<int32_t>& starts, int rank) const {
  std::vector<ExpertPart> found;
  Loads loads(ranks_, 0);
  std::vector<int32_t> divided;
  for (int expert = 0; expert < experts_; ++expert) {
    const int32_t first = starts[expert], rows = starts[expert + 1] - first;
    if (rows == 0) continue;
    if (!slots_with_[expert].empty()) {
      divided.push_back(expert);
      continue;
    }
    const int mine = owner(expert);
    loads[mine] += cost(rows);
    if (mine == rank) found.push_back({expert, first, rows, -1});
  }
  for (const int expert : divided) divide(expert, starts, loads, rank, found);
  return found;
}

// Gives each rank that has the expert so many of its rows that these ranks have equally much to do,
// as far as that is possible; one for which so few rows would be left gets none.
void ExpertBalance::divide(int expert, const std::vector<int32_t>& starts, Loads& loads, int rank,
                           std::vector<ExpertPart>& parts) const {
  std::vector<std::pair<int, int>> holders{{owner(expert), -1}};  // ranks, each with its slot
  for (const int slot : slots_with_[expert]) holders.emplace_back(holder(slot), slot);
  std::stable_sort(holders.begin(), holders.end(), [&](const auto& one, const auto& other) {
    return loads[one.first] < loads[other.first];
  });
  const int64_t rows = starts[expert + 1] - starts[expert];
  int64_t level = loads[holders[0].first] + cost(rows);
  size_t used = 1;
  for (int64_t sum = loads[holders[0].first]; used < holders.size(); ++used) {
    sum += loads[holders[used].first];
    const int64_t many = used + 1, then = (sum + rows) / many + kRowsOfReading;
    if (then >= level || then - loads[holders[used].first] < 2 * kRowsOfReading) break;
    level = then;
  }
  int32_t first = starts[expert];
  for (size_t at = 0; at < used && first < starts[expert + 1]; ++at) {
    const auto [mine, slot] = holders[at];
    const int64_t left = starts[expert + 1] - first;
    const int64_t fitting = std::max<int64_t>(0, level - loads[mine] - kRowsOfReading);
    const int64_t some = at + 1 == used ? left : std::min(left, fitting);
    loads[mine] += cost(some);
    if (mine == rank && some > 0)
      parts.push_back({expert, first, static_cast<int32_t>(some), slot});
    first += static_cast<int32_t>(some);
  }
}

void ExpertBalance::count(const std::vector<int32_t>& starts) {
  for (int expert = 0; expert < experts_; ++expert)
    counts_[expert] += starts[expert + 1] - starts[expert];
}

// How many pairs one more copy of the expert takes from each rank that has it: its owner, and those
// with so many copies.
int64_t ExpertBalance::relief(int expert, int64_t copies) const {
  return counts_[expert] / (copies + 1) - counts_[expert] / (copies + 2);
}

std::optional<ExpertBalance::Copy> ExpertBalance::choose() {
  Loads loads(ranks_, 0);
  std::vector<bool> has(static_cast<size_t>(ranks_) * experts_);
  std::vector<int64_t> reliefs(experts_);
  for (int expert = 0; expert < experts_; ++expert) {
    const std::vector<int32_t>& slots = slots_with_[expert];
    const auto copies = static_cast<int64_t>(slots.size());
    const auto note = [&](int rank) {
      loads[rank] += counts_[expert] / (copies + 1);
      has[static_cast<size_t>(rank) * experts_ + expert] = true;
    };
    note(owners_[expert]);
    for (const int slot : slots) note(holder(slot));
    reliefs[expert] = relief(expert, copies);
  }
  std::optional<Copy> best;
  int64_t most = 0;
  for (int slot = 0; slot < slots(); ++slot) {
    const int rank = holder(slot), kept = in_slot_[slot];
    const int64_t now =
        kept < 0 ? 0 : relief(kept, static_cast<int64_t>(slots_with_[kept].size()) - 1);
    for (int expert = 0; expert < experts_; ++expert) {
      const int64_t gain = reliefs[expert] - now;
      if (gain <= most || reliefs[expert] * kGainOver <= now * kGainOf) continue;
      if (loads[owners_[expert]] <= loads[rank]) continue;
      if (has[static_cast<size_t>(rank) * experts_ + expert]) continue;
      most = gain;
      best = Copy{slot, expert};
    }
  }
  for (int64_t& each : counts_) each /= 2;
  return best;
}

}  // namespace octavo
