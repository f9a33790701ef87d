// How a step's attention is cut into items for the team.
#include "runtime/attention_plan.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace octavo {

namespace {

// What reading one position costs beside multiplying it, in queries: memory is the slower part as
// long as few queries share a read.
constexpr int64_t kReadCost = 4;
// Pieces a thread should get at least, so that the last ones to finish are short.
constexpr int64_t kPiecesPerThread = 4;
// Most rows of a sequence that still gains by reading together with others: its queries alone fill
// few of the groups that kernels multiply at once.
constexpr int kFewRows = kAttentionRows / 4;

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

// How many leading splits of two sequences are the same blocks in every group of layers.
int splits_alike(const std::vector<const SequenceRows*>& groups, int one, int other, int most,
                 int block_size) {
  int alike = most * kSplit / block_size;  // blocks
  for (const SequenceRows* sequences : groups) {
    const int32_t *first = sequences[one].table, *second = sequences[other].table;
    alike = static_cast<int>(std::mismatch(first, first + alike, second).first - first);
  }
  return alike * block_size / kSplit;
}

}  // namespace

// Finds for each sequence the first that begins with the same block, and how much of it they share:
// splits that lie whole before the rows of both, so that nobody writes to them in this step.
void AttentionPlan::find_shared(const AttentionShape& shape,
                                const std::vector<const SequenceRows*>& groups, int count,
                                int block_size) {
  leaders_.assign(count, -1);
  num_shared_.assign(count, 0);
  if (shape.window > 0 || kSplit % block_size != 0) return;
  std::unordered_map<int32_t, int32_t> first_with;
  for (int s = 0; s < count; ++s) {
    const SequenceRows& sequence = groups[0][s];
    const int whole = sequence.first_position / kSplit;
    if (sequence.rows > kFewRows || whole == 0) continue;
    const auto [found, is_new] = first_with.try_emplace(sequence.table[0], s);
    const int leader = found->second;
    leaders_[s] = leader;
    if (is_new) continue;
    const int most = std::min(whole, groups[0][leader].first_position / kSplit);
    num_shared_[s] = splits_alike(groups, leader, s, most, block_size);
    num_shared_[leader] = std::max(num_shared_[leader], num_shared_[s]);
  }
}

void AttentionPlan::make(const KernelTable& kernels, const AttentionShape& shape,
                         const std::vector<const SequenceRows*>& groups, int count, int block_size,
                         int threads) {
  items_.clear();
  merges_.clear();
  members_.clear();
  partial_floats_ = 0;
  find_shared(shape, groups, count, block_size);
  parts_.assign(count, {});
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
    cut(kernels, shape, unit, num_shared_[unit.sequence], static_cast<int>(pieces));
  }
  put_together(shape, count);
  std::stable_sort(items_.begin(), items_.end(), comes_before);
  if (num_done_ < merges_.size()) {
    num_done_ = merges_.size();
    done_ = std::make_unique<std::atomic<int32_t>[]>(num_done_);
  }
  for (size_t i = 0; i < num_done_; ++i) done_[i].store(0, std::memory_order_relaxed);
}

// Makes items of the splits that the unit reads by itself; those before it reads with others.
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
  if (num_shared > 0) {
    // Of all heads and splits; put_together looks up where each one's sums go.
    parts_[leaders_[unit.sequence]].push_back(
        {unit.sequence, unit.first, unit.rows, merge, partial_floats_});
  }
  merges_.push_back({unit.sequence, unit.first, unit.rows, unit.kv_head, num_shared + splits,
                     num_shared + pieces, partial_floats_, floats_of_a_split});
  partial_floats_ += (num_shared + splits) * floats_of_a_split;
}

// Makes items of what sequences share: one for each split and KV head, for as many rows as a kernel
// takes. The items of one leader read the longest prefix first.
void AttentionPlan::put_together(const AttentionShape& shape, int count) {
  const int group = shape.heads / shape.kv_heads;
  for (int leader = 0; leader < count; ++leader) {
    const size_t begin = items_.size();
    int64_t together = 0;
    for (int split = 0; split < num_shared_[leader] && !parts_[leader].empty(); ++split) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        AttentionItem* item = nullptr;
        for (const AttentionMember& part : parts_[leader]) {
          if (merges_[part.merge].kv_head != head || num_shared_[part.sequence] <= split) continue;
          if (!item || item->rows + part.rows > kAttentionRows) {
            const int32_t next = static_cast<int32_t>(members_.size());
            items_.push_back({part.sequence, part.first, 0, head, split, split + 1, -1, 0, 0, 0,
                              next, next});
            item = &items_.back();
          }
          members_.push_back(part);
          members_.back().partials += split * merges_[part.merge].floats_of_a_split;
          ++item->end_member;
          item->rows += part.rows;
          item->cost = int64_t{kSplit} * (kReadCost + int64_t{item->rows} * group);
        }
      }
    }
    for (size_t i = begin; i < items_.size(); ++i) together += items_[i].cost;
    for (size_t i = begin; i < items_.size(); ++i) items_[i].together = together;
  }
}

// One more of a merge's items is done; whoever does the last one puts their sums together.
void AttentionPlan::finish(int index, const AttentionCall& call, uint8_t* scratch) {
  const AttentionMerge& merge = merges_[index];
  // Release: my partial sums are seen by whoever comes last; acquire: I see theirs.
  std::atomic<int32_t>& done = done_[index];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < merge.items) return;
  done.store(0, std::memory_order_relaxed);  // for the next layer, which is behind a barrier
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

void AttentionPlan::run_item(size_t index, const AttentionCall& call, uint8_t* scratch) {
  const AttentionItem& item = items_[index];
  if (item.first_member >= 0) {
    const float* queries[kAttentionRows];
    const int column = item.kv_head * (call.shape.heads / call.shape.kv_heads);
    int count = 0;
    for (int i = item.first_member; i < item.end_member; ++i) {
      const AttentionMember& member = members_[i];
      const size_t first = call.sequences[member.sequence].first_row + member.first;
      for (int row = 0; row < member.rows; ++row)
        queries[count++] = call.q + (first + row) * call.q_stride + column * call.shape.head_dim;
    }
    return run_together(item, call, queries, scratch);
  }
  float* partials = item.merge < 0 ? nullptr : call.partials + item.partials;
  call.kernels->attention(call.cache, call.shape, call.sequences[item.sequence], item.first,
                          item.rows, item.kv_head, item.first_split, item.end_split, call.q,
                          call.q_stride, call.out, call.out_stride, partials, scratch);
  if (item.merge >= 0) finish(item.merge, call, scratch);
}

void AttentionPlan::run(const AttentionCall& call, std::atomic<size_t>& next, uint8_t* scratch) {
  for (;;) {
    const size_t index = next.fetch_add(1, std::memory_order_relaxed);
    if (index >= items_.size()) return;
    run_item(index, call, scratch);
  }
}

}  // namespace octavo
