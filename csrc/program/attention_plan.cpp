// Divides a step's attention into items for the team.
#include "program/attention_plan.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <unordered_map>

namespace octavo {

namespace {

// The cost of reading one position, in queries that multiply it: memory is the slower part as long
// as few queries share a read.
constexpr int64_t kReadCost = 4;
// Pieces a thread should get at least, so that the last ones to finish are short.
constexpr int64_t kPiecesPerThread = 4;
// A thread takes as many items ahead as it computes, so that it holds twice as many: at most this
// part of its share, lest it be still at work when the others have ended.
constexpr int64_t kMostHeld = 8;
// Units are not cut if the last thread would end at most this part of its share after the others:
// each split of a cut unit is written to memory and read again.
constexpr int64_t kUnevenPart = 8;
// Most rows of a sequence that still gains by reading together with others: its queries alone fill
// few of the groups that kernels multiply at once.
constexpr int kFewRows = kAttentionRows / 4;

// The end of the positions that a row at this position sees.
int end_seen(const AttentionShape& shape, const SequenceRows& sequence, int position) {
  if (!shape.both_ways) return position + 1;
  return shape.window > 0 ? std::min(sequence.end, position + shape.window) : sequence.end;
}

// In which order items are taken: those that read the same cells one after the other, so that they
// find them in their caches, and else the longest first, so that all end at about the same time.
bool comes_before(const AttentionItem& one, const AttentionItem& other) {
  const auto key = [](const AttentionItem& item) {
    return std::tuple(-item.together, item.sequence, item.kv_head, -item.cost);
  };
  return key(one) < key(other);
}

// Returns whether two sequences have a split in the same blocks, in every group of layers.
bool is_alike(const std::vector<const SequenceRows*>& groups, int one, int other, int split,
              int block_size) {
  const int first = split * kSplit / block_size, end = first + kSplit / block_size;
  return std::all_of(groups.begin(), groups.end(), [&](const SequenceRows* sequences) {
    const int32_t *mine = sequences[one].table, *theirs = sequences[other].table;
    return std::equal(mine + first, mine + end, theirs + first);
  });
}

// Returns whether threads that each take the longest unit left would end at about the same time.
bool are_balanced(const std::vector<AttentionItem>& units, int64_t total, int threads) {
  std::vector<int64_t> costs;
  for (const AttentionItem& unit : units) costs.push_back(unit.cost);
  std::sort(costs.begin(), costs.end(), std::greater<>());
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> ends;
  for (int thread = 0; thread < threads; ++thread) ends.push(0);
  int64_t last = 0;
  for (const int64_t cost : costs) {
    const int64_t end = ends.top() + cost;
    ends.pop();
    ends.push(end);
    last = std::max(last, end);
  }
  return (last - total / threads) * kUnevenPart <= total / threads;
}

}  // namespace

// Finds the splits that sequences share, as the branches of a tree: sequences that share one split
// are compared in the next. Considers only splits that lie wholly before a sequence's rows, so that
// this step does not write to them, and only as many sequences as there is memory for their sums.
void AttentionPlan::find_shared(const KernelTable& kernels, const AttentionShape& shape,
                                const std::vector<const SequenceRows*>& groups, int count,
                                int block_size) {
  num_shared_.assign(count, 0);
  shared_.clear();
  if (shape.window > 0 || shape.skipped > 0 || shape.both_ways || kSplit % block_size != 0) return;
  size_t room = kMostSharedBytes / sizeof(float);
  std::vector<std::vector<int32_t>> branches(1), next;
  for (int s = 0; s < count; ++s)
    if (groups[0][s].rows <= kFewRows) branches[0].push_back(s);
  for (int split = 0; !branches.empty(); ++split) {
    next.clear();
    for (const std::vector<int32_t>& branch : branches) {
      const size_t begin = next.size();
      std::unordered_map<int32_t, size_t> with_block;
      for (const int32_t s : branch) {
        const SequenceRows& sequence = groups[0][s];
        if (sequence.first_position < (split + 1) * kSplit) continue;
        const int32_t block = sequence.table[split * (kSplit / block_size)];
        const auto [found, is_new] = with_block.try_emplace(block, next.size());
        if (is_new) next.emplace_back();
        std::vector<int32_t>& alike = next[found->second];
        if (!is_new && !is_alike(groups, alike[0], s, split, block_size)) continue;
        if (split == 0 && !is_new) {
          const auto floats_of = [&](const SequenceRows& each) {
            const size_t splits = (each.first_position + each.rows - 1) / kSplit + 1;
            return splits * shape.kv_heads * kernels.attention_partial_floats(shape, each.rows);
          };
          size_t asked = floats_of(sequence);
          // The first of them was not counted while it was alone.
          if (alike.size() == 1) asked += floats_of(groups[0][alike[0]]);
          if (asked > room) continue;
          room -= asked;
        }
        alike.push_back(s);
      }
      next.erase(std::remove_if(next.begin() + begin, next.end(),
                                [](const auto& alike) { return alike.size() < 2; }),
                 next.end());
    }
    for (const std::vector<int32_t>& alike : next) {
      for (const int32_t s : alike) num_shared_[s] = split + 1;
      shared_.push_back({split, alike});
    }
    std::swap(branches, next);
  }
}

size_t AttentionPlan::most_partial_floats(const KernelTable& kernels, const AttentionShape& shape,
                                          int sequences, int positions, int threads) {
  const size_t splits = (size_t(positions) + kSplit - 1) / kSplit;
  // Only units that cost more than a piece are cut, and these are no more than there are pieces.
  const size_t cut = threads > 1 ? threads * kPiecesPerThread * splits *
                                       kernels.attention_partial_floats(shape, kAttentionRows)
                                 : 0;
  const size_t shared = sequences * splits * shape.kv_heads *
                        kernels.attention_partial_floats(shape, kFewRows);
  return cut + (sequences > 1 ? std::min(shared, kMostSharedBytes / sizeof(float)) : 0);
}

void AttentionPlan::make(const KernelTable& kernels, const AttentionShape& shape,
                         const std::vector<const SequenceRows*>& groups, int count, int block_size,
                         int threads) {
  items_.clear();
  merges_.clear();
  members_.clear();
  partial_floats_ = 0;
  find_shared(kernels, shape, groups, count, block_size);
  merge_of_.assign(static_cast<size_t>(count) * shape.kv_heads, -1);
  const SequenceRows* sequences = groups[0];
  const int group = shape.heads / shape.kv_heads;
  std::vector<AttentionItem> units;
  int64_t total = 0;
  for (int s = 0; s < count; ++s) {
    const SequenceRows& sequence = sequences[s];
    const size_t begin = units.size();
    int64_t together = 0;
    for (int first = 0; first < sequence.rows; first += kAttentionRows) {
      const int rows = std::min(kAttentionRows, sequence.rows - first);
      const int low = std::max(first_seen(shape, sequence.first_position + first),
                               num_shared_[s] * kSplit);
      const int high = end_seen(shape, sequence, sequence.first_position + first + rows - 1);
      const int64_t cost = int64_t{high - low} * (kReadCost + int64_t{rows} * group);
      for (int head = 0; head < shape.kv_heads; ++head) {
        units.push_back({s, first, rows, head, low / kSplit, (high - 1) / kSplit + 1, -1, 0, cost,
                         0});
        total += cost;
      }
      together += cost;
    }
    for (size_t unit = begin; unit < units.size(); ++unit) units[unit].together = together;
  }
  const int64_t most = std::max<int64_t>(1, total / (threads * kPiecesPerThread));
  const bool is_long = std::any_of(units.begin(), units.end(), [&](const AttentionItem& unit) {
    return unit.cost > most;
  });
  const bool cuts = threads > 1 && is_long && !are_balanced(units, total, threads);
  for (const AttentionItem& unit : units) {
    const int64_t splits = unit.end_split - unit.first_split;
    const int64_t pieces = cuts ? std::min(splits, (unit.cost + most - 1) / most) : 1;
    cut(kernels, shape, unit, num_shared_[unit.sequence], static_cast<int>(pieces));
  }
  put_together(shape, sequences, threads);
  int64_t all = 0, longest = 0;
  for (const AttentionItem& item : items_) {
    all += item.cost;
    longest = std::max(longest, item.cost);
  }
  const int64_t held = all / threads / kMostHeld;
  run_ = 2 * longest * shape.kv_heads <= held ? shape.kv_heads : 2 * longest <= held ? 1 : 0;
  std::stable_sort(items_.begin(), items_.end(), comes_before);
  if (num_done_ < merges_.size()) {
    num_done_ = std::max(merges_.size(), 2 * num_done_);
    done_memory_ = pages_for(ranks_, num_done_ * sizeof(std::atomic<int32_t>), false);
    done_ = reinterpret_cast<std::atomic<int32_t>*>(done_memory_.data());
  }
  // After an error items may be left; ranks end then, and one may be ahead of another here.
  if (ranks_) return;
  for (size_t i = 0; i < num_done_; ++i) done_[i].store(0, std::memory_order_relaxed);
}

// Makes items of the splits that the unit reads by itself, after those that it shares.
void AttentionPlan::cut(const KernelTable& kernels, const AttentionShape& shape, AttentionItem unit,
                        int num_shared, int pieces) {
  if (pieces == 1 && num_shared == 0) {
    items_.push_back(unit);
    return;
  }
  const size_t floats_of_a_split = kernels.attention_partial_floats(shape, unit.rows);
  const int32_t merge = static_cast<int32_t>(merges_.size());
  const int splits = unit.end_split - unit.first_split;
  for (int piece = 0; piece < pieces; ++piece) {
    AttentionItem item = unit;
    const int begin = splits * piece / pieces, end = splits * (piece + 1) / pieces;
    item.first_split = unit.first_split + begin;
    item.end_split = unit.first_split + end;
    item.merge = merge;
    item.partials = partial_floats_ + (num_shared + begin) * floats_of_a_split;
    item.cost = unit.cost * (end - begin) / splits;
    items_.push_back(item);
  }
  if (num_shared > 0) merge_of_[unit.sequence * shape.kv_heads + unit.kv_head] = merge;
  merges_.push_back({unit.sequence, unit.first, unit.rows, unit.kv_head, num_shared + splits,
                     num_shared + pieces, partial_floats_, floats_of_a_split});
  partial_floats_ += (num_shared + splits) * floats_of_a_split;
}

// Makes items of the shared splits: one for each split and KV head, for as many rows as a kernel
// takes. They run first, since they are the longest.
void AttentionPlan::put_together(const AttentionShape& shape, const SequenceRows* sequences,
                                 int threads) {
  const int group = shape.heads / shape.kv_heads;
  const size_t begin = items_.size();
  int64_t together = 0, all_rows = 0;
  for (const SharedSplit& shared : shared_)
    for (const int32_t s : shared.sequences) all_rows += sequences[s].rows * shape.kv_heads;
  // Fewer rows than a kernel takes, where otherwise threads would have nothing to do.
  const int most_rows =
      static_cast<int>(std::clamp<int64_t>(all_rows / threads, 1, kAttentionRows));
  for (const SharedSplit& shared : shared_) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      size_t open = 0;  // the item that takes more rows; 0 if none does
      for (const int32_t s : shared.sequences) {
        const int rows = sequences[s].rows;
        if (open == 0 || items_[open].rows + rows > most_rows) {
          open = items_.size();
          const int32_t next = static_cast<int32_t>(members_.size());
          items_.push_back({s, 0, 0, head, shared.split, shared.split + 1, -1, 0, 0, 0, next,
                            next});
        }
        const int32_t merge = merge_of_[s * shape.kv_heads + head];
        members_.push_back({s, rows, merge,
                            merges_[merge].partials +
                                shared.split * merges_[merge].floats_of_a_split});
        AttentionItem& item = items_[open];
        ++item.end_member;
        item.rows += rows;
        item.cost += int64_t{kSplit} * rows * group;
      }
    }
  }
  for (size_t i = begin; i < items_.size(); ++i) {
    items_[i].cost += int64_t{kSplit} * kReadCost;
    together += items_[i].cost;
  }
  for (size_t i = begin; i < items_.size(); ++i) items_[i].together = together;
}

// Counts a finished item of a merge; the thread that finishes the last one merges the sums.
void AttentionPlan::finish(int index, const AttentionCall& call, uint8_t* scratch) {
  const AttentionMerge& merge = merges_[index];
  // Release: the last thread sees these partial sums; acquire: it sees those of the others.
  std::atomic<int32_t>& done = done_[index];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < merge.items) return;
  done.store(0, std::memory_order_relaxed);  // for the next layer, which comes after a barrier
  call.kernels->merge_attention(call.shape, call.sequences[merge.sequence].first_row + merge.first,
                                merge.rows, merge.kv_head, merge.splits,
                                call.partials + merge.partials, call.out, call.out_stride, scratch);
}

void AttentionPlan::run_together(const AttentionItem& item, const AttentionCall& call,
                                 const float* const* queries, uint8_t* scratch) {
  const size_t row_floats = call.kernels->attention_partial_floats(call.shape, 1);
  TogetherRow rows[kAttentionRows];
  int count = 0;
  for (int i = item.first_member; i < item.end_member; ++i) {
    const AttentionMember& member = members_[i];
    for (int row = 0; row < member.rows; ++row, ++count)
      rows[count] = {queries[count], call.partials + member.partials + row * row_floats};
  }
  call.kernels->attention_together(call.cache, call.shape, rows, count, item.kv_head,
                                   item.first_split, call.sequences[item.sequence].table, scratch);
  for (int i = item.first_member; i < item.end_member; ++i)
    finish(members_[i].merge, call, scratch);
}

AttentionPart AttentionPlan::part_of(const AttentionItem& item, const AttentionCall& call) const {
  const SequenceRows& all = call.sequences[item.sequence];
  return {{all.first_row + item.first, item.rows, all.first_position + item.first, all.table,
           all.end},
          item.kv_head, item.first_split, item.end_split};
}

void AttentionPlan::run_item(int index, int coming, const AttentionCall& call, uint8_t* scratch) {
  const AttentionItem& item = items_[index];
  if (item.first_member >= 0) {
    const float* queries[kAttentionRows];
    const int column = item.kv_head * (call.shape.heads / call.shape.kv_heads);
    int count = 0;
    for (int i = item.first_member; i < item.end_member; ++i) {
      const AttentionMember& member = members_[i];
      const size_t first = call.sequences[member.sequence].first_row;
      for (int row = 0; row < member.rows; ++row)
        queries[count++] = call.q + (first + row) * call.q_stride + column * call.shape.head_dim;
    }
    return run_together(item, call, queries, scratch);
  }
  float* partials = item.merge < 0 ? nullptr : call.partials + item.partials;
  const bool is_known = coming >= 0 && items_[coming].first_member < 0;
  const AttentionPart next = is_known ? part_of(items_[coming], call) : AttentionPart{};
  call.kernels->attention(call.cache, call.shape, part_of(item, call), is_known ? &next : nullptr,
                          call.q, call.q_stride, call.out, call.out_stride, partials, scratch);
  if (item.merge >= 0) finish(item.merge, call, scratch);
}

}  // namespace octavo
