// How a step's attention is cut into items for the team.
#include "runtime/attention_plan.h"

#include <algorithm>
#include <tuple>

namespace octavo {

namespace {

// What reading one position costs beside multiplying it, in queries: memory is the slower part as
// long as few queries share a read.
constexpr int64_t kReadCost = 4;
// Pieces a thread should get at least, so that the last ones to finish are short.
constexpr int64_t kPiecesPerThread = 4;

int first_seen(const AttentionShape& shape, int position) {
  return shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
}

// In which order items are taken: those that read the same cells one after the other, so that they
// find them in their caches, and else the longest first, so that all end at about the same time.
bool comes_before(const AttentionItem& one, const AttentionItem& other) {
  const auto key = [](const AttentionItem& item) {
    return std::tuple(-item.together, item.sequence, item.kv_head, -item.cost);
  };
  return key(one) < key(other);
}

}  // namespace

void AttentionPlan::make(const KernelTable& kernels, const AttentionShape& shape,
                         const SequenceRows* sequences, int count, int threads) {
  items_.clear();
  merges_.clear();
  partial_floats_ = 0;
  const int group = shape.heads / shape.kv_heads;
  std::vector<AttentionItem> units;
  int64_t total = 0;
  for (int s = 0; s < count; ++s) {
    const SequenceRows& sequence = sequences[s];
    const size_t begin = units.size();
    int64_t together = 0;
    for (int first = 0; first < sequence.rows; first += kAttentionRows) {
      const int rows = std::min(kAttentionRows, sequence.rows - first);
      const int low = first_seen(shape, sequence.first_position + first);
      const int high = sequence.first_position + first + rows;
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
  for (const AttentionItem& unit : units) {
    const int64_t splits = unit.end_split - unit.first_split;
    const int64_t pieces = threads > 1 ? std::min(splits, (unit.cost + most - 1) / most) : 1;
    cut(unit, static_cast<int>(pieces), kernels.attention_partial_floats(shape, unit.rows));
  }
  std::stable_sort(items_.begin(), items_.end(), comes_before);
  if (num_done_ < merges_.size()) {
    num_done_ = merges_.size();
    done_ = std::make_unique<std::atomic<int32_t>[]>(num_done_);
  }
  for (size_t i = 0; i < num_done_; ++i) done_[i].store(0, std::memory_order_relaxed);
}

void AttentionPlan::cut(AttentionItem unit, int pieces, size_t floats_of_a_split) {
  if (pieces == 1) {
    items_.push_back(unit);
    return;
  }
  const int splits = unit.end_split - unit.first_split;
  for (int piece = 0; piece < pieces; ++piece) {
    AttentionItem item = unit;
    const int begin = splits * piece / pieces, end = splits * (piece + 1) / pieces;
    item.first_split = unit.first_split + begin;
    item.end_split = unit.first_split + end;
    item.merge = static_cast<int32_t>(merges_.size());
    item.partials = partial_floats_ + begin * floats_of_a_split;
    item.cost = unit.cost * (end - begin) / splits;
    items_.push_back(item);
  }
  merges_.push_back({unit.sequence, unit.first, unit.rows, unit.kv_head, splits, pieces,
                     partial_floats_});
  partial_floats_ += splits * floats_of_a_split;
}

void AttentionPlan::run_item(size_t index, const AttentionCall& call, uint8_t* scratch) {
  const AttentionItem& item = items_[index];
  float* partials = item.merge < 0 ? nullptr : call.partials + item.partials;
  call.kernels->attention(call.cache, call.shape, call.sequences[item.sequence], item.first,
                          item.rows, item.kv_head, item.first_split, item.end_split, call.q,
                          call.q_stride, call.out, call.out_stride, partials, scratch);
  if (item.merge < 0) return;
  const AttentionMerge& merge = merges_[item.merge];
  // Release: my partial sums are seen by whoever comes last; acquire: I see theirs.
  std::atomic<int32_t>& done = done_[item.merge];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < merge.items) return;
  done.store(0, std::memory_order_relaxed);  // for the next layer, which is behind a barrier
  call.kernels->merge_attention(call.shape, call.sequences[merge.sequence].first_row + merge.first,
                                merge.rows, merge.kv_head, merge.splits,
                                call.partials + merge.partials, call.out, call.out_stride, scratch);
}

void AttentionPlan::run(const AttentionCall& call, std::atomic<size_t>& next, uint8_t* scratch) {
  for (;;) {
    const size_t index = next.fetch_add(1, std::memory_order_relaxed);
    if (index >= items_.size()) return;
    run_item(index, call, scratch);
  }
}

}  // namespace octavo
