// Which pieces of work a step's attention is cut into.
//
// How it is cut changes no bits: a row's splits are always the same runs of positions, and they are
// merged in order whoever computed them.
#include "runtime/attention_plan.h"

#include <algorithm>

namespace octavo {

namespace {

// Query rows times heads of a group that one item takes: enough to reuse keys while they are in
// the nearest cache, few enough for scores to fit beside them.
constexpr int kQueries = 48;
// Items for each thread from which on there is work enough without cutting sequences apart.
constexpr int kEnough = 4;

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape, int threads)
    : shape_(shape), threads_(threads) {
  tile_ = std::max(1, kQueries / std::max(1, shape.heads / shape.kv_heads));
}

bool AttentionPlan::serves(const AttentionShape& shape) const {
  return shape.heads == shape_.heads && shape.kv_heads == shape_.kv_heads &&
         shape.head_dim == shape_.head_dim && shape.window == shape_.window;
}

void AttentionPlan::make(const int32_t* row_starts, const int32_t* positions, int sequences) {
  items_.clear();
  teams_.clear();
  num_partials_ = 0;
  own_floats_ = 0;
  int tiles = 0;
  for (int s = 0; s < sequences; ++s)
    tiles += (row_starts[s + 1] - row_starts[s] + tile_ - 1) / tile_;
  may_divide_ = threads_ > 1 && tiles * shape_.kv_heads < kEnough * threads_;
  for (int s = 0; s < sequences; ++s) {
    const int rows = row_starts[s + 1] - row_starts[s];
    for (int first = 0; first < rows; first += tile_)
      add_rows(s, first, std::min(tile_, rows - first), positions[row_starts[s]] + first);
  }
  // The longest first, so that nobody begins on one when the others are done already.
  std::stable_sort(items_.begin(), items_.end(), [](const auto& one, const auto& other) {
    return one.rows * (one.end_split - one.first_split) >
           other.rows * (other.end_split - other.first_split);
  });
  if (static_cast<size_t>(num_partials_) > partials_.size()) partials_.resize(num_partials_);
  if (teams_.size() > done_size_) {
    done_size_ = teams_.size() * 2;
    done_ = std::make_unique<std::atomic<int32_t>[]>(done_size_);
    for (size_t team = 0; team < done_size_; ++team) done_[team].store(0);
  }
}

void AttentionPlan::add_rows(int sequence, int first, int rows, int position) {
  const int window = shape_.window;
  const int begin = window && position >= window ? (position - window + 1) / kSplit : 0;
  const int end = (position + rows - 1) / kSplit + 1;
  const int splits = end - begin;
  const size_t floats = partial_floats(shape_, rows);
  for (int head = 0; head < shape_.kv_heads; ++head) {
    AttentionItem item{sequence, first, rows, head, begin, end, -1, 0};
    if (splits == 1 || !may_divide_) {
      if (splits > 1) own_floats_ = std::max(own_floats_, floats * splits);
      items_.push_back(item);
      continue;
    }
    item.team = static_cast<int32_t>(teams_.size());
    teams_.push_back({begin, splits});
    for (int split = begin; split < end; ++split) {
      item.first_split = split;
      item.end_split = split + 1;
      item.partial = num_partials_;
      num_partials_ += floats;
      items_.push_back(item);
    }
  }
}

bool AttentionPlan::is_last(int team) {
  if (done_[team].fetch_add(1, std::memory_order_acq_rel) + 1 != teams_[team].splits) return false;
  done_[team].store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace octavo
