// Which pieces of work a step's attention is cut into.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// Some rows of a sequence, one KV head, and a run of splits of its positions.
struct AttentionItem {
  int32_t sequence;
  int32_t first;        // row, counted within the sequence's
  int32_t rows;
  int32_t kv_head;
  int32_t first_split;
  int32_t end_split;
  int32_t team;         // items that share one result; -1: alone
  int64_t partial;      // floats in front of its first split's partial sums, where in a team
};

// Floats of one item's partial sums of one split.
inline size_t partial_floats(const AttentionShape& shape, int rows) {
  return static_cast<size_t>(rows) * (shape.heads / shape.kv_heads) * (shape.head_dim + 2);
}

// One a distinct shape: windows differ, so do the splits that are seen.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionShape& shape, int threads);

  bool serves(const AttentionShape& shape) const;
  const AttentionShape& shape() const { return shape_; }

  void make(const int32_t* row_starts, const int32_t* positions, int sequences);
  const std::vector<AttentionItem>& items() const { return items_; }

  // The first split that a team's result is made of, and how many.
  int first_split(int team) const { return teams_[team].first_split; }
  int num_splits(int team) const { return teams_[team].splits; }
  float* partials() { return partials_.data(); }
  // Says that one more of a team is done; true for the last, who merges, and leaves it as it was.
  bool is_last(int team);

  // Most floats of partial sums that an item on its own needs.
  size_t own_floats() const { return own_floats_; }

 private:
  struct TeamOfItems {
    int32_t first_split;
    int32_t splits;
  };
  void add_rows(int sequence, int first, int rows, int position);

  AttentionShape shape_;
  int threads_;
  int tile_;
  bool may_divide_ = false;
  std::vector<AttentionItem> items_;
  std::vector<TeamOfItems> teams_;
  std::vector<float> partials_;
  int64_t num_partials_ = 0;
  size_t own_floats_ = 0;
  std::unique_ptr<std::atomic<int32_t>[]> done_;
  size_t done_size_ = 0;
};

}  // namespace octavo
