// Divides a step's attention into items for the team: made once a step for all layers of one shape
// and window, from lengths alone.
//
// How to use it:
//   plan.make(kernels, shape, sequences, count, threads);   // once a step, by one thread
//   partials: plan.partial_floats() floats, shared; scratch: kernels.attention_scratch(shape) a
//   thread; then in each layer, after a barrier that makes q, K and V visible:
//     plan.run_item(index, coming, call, scratch);  // of each item, by any thread
//   and a barrier before `out` is read. The thread that finishes the last part of a row merges it.
//
// If tables of sequences begin with the same blocks (a shared prefix), these are read once for rows
// of several sequences, as long as each sequence has few rows.
//
// The bits do not depend on which thread runs an item, on how the splits of a row are divided, or
// on which rows are read together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/table.h"
#include "runtime/ranks.h"

namespace octavo {

// The most memory for sums of sequences that read a shared prefix together; sequences whose sums
// exceed it read alone.
constexpr size_t kMostSharedBytes = size_t{64} << 20;

// Rows of a sequence, with one KV head, over some of the splits they see; or one split for rows of
// several sequences, the first of which is named here.
struct AttentionItem {
  int32_t sequence;
  int32_t first;  // row of the sequence
  int32_t rows;
  int32_t kv_head;
  int32_t first_split;
  int32_t end_split;
  int32_t merge;    // which merge it is a part of; -1: none, it writes the result itself
  size_t partials;  // where its partial sums go, in floats
  int64_t cost;     // about: positions × the cost of one
  int64_t together;  // the cost of all items that read the same cells
  int32_t first_member = -1;  // of those that read together; -1: the sequence is alone
  int32_t end_member = -1;
};

// A sequence among those that read a split together, with all its rows.
struct AttentionMember {
  int32_t sequence;
  int32_t rows;
  int32_t merge;
  size_t partials;
};

// Sums of several items, which the thread that finishes the last of them merges.
struct AttentionMerge {
  int32_t sequence;
  int32_t first;
  int32_t rows;
  int32_t kv_head;
  int32_t splits;
  int32_t items;
  size_t partials;
  size_t floats_of_a_split;
};

// One layer's operands.
struct AttentionCall {
  const KernelTable* kernels;
  Cache cache;
  AttentionShape shape;
  const SequenceRows* sequences;  // as planned, with the tables of this layer's group
  const float* q;
  size_t q_stride;
  float* out;
  size_t out_stride;
  float* partials;
};

class AttentionPlan {
 public:
  // Items are counted where all ranks see it.
  explicit AttentionPlan(Ranks* ranks = nullptr) : ranks_(ranks) {}

  // `groups` are the same sequences with the tables of each group of layers that the plan is for.
  void make(const KernelTable& kernels, const AttentionShape& shape,
            const std::vector<const SequenceRows*>& groups, int count, int block_size, int threads);

  // The most that partial_floats() can be for so many sequences of up to `positions`.
  static size_t most_partial_floats(const KernelTable& kernels, const AttentionShape& shape,
                                    int sequences, int positions, int threads);

  const std::vector<AttentionItem>& items() const { return items_; }
  const std::vector<AttentionMember>& members() const { return members_; }
  size_t partial_floats() const { return partial_floats_; }
  // How many items a thread takes at a time, and as many ahead: those of all KV heads, or one, as
  // long as they are a small part of its share; 0: one, and none ahead.
  int run() const { return run_; }

  // `coming` is the item that the thread runs next, or -1 if that is not known.
  void run_item(int index, int coming, const AttentionCall& call, uint8_t* scratch);
  // The same of an item of several sequences; queries[i] are of its i-th row, from the first of the
  // KV head's query heads on.
  void run_together(const AttentionItem& item, const AttentionCall& call,
                    const float* const* queries, uint8_t* scratch);

 private:
  void find_shared(const KernelTable& kernels, const AttentionShape& shape,
                   const std::vector<const SequenceRows*>& groups, int count, int block_size);
  void cut(const KernelTable& kernels, const AttentionShape& shape, AttentionItem unit,
           int num_shared, int pieces);
  void put_together(const AttentionShape& shape, const SequenceRows* sequences, int threads);
  AttentionPart part_of(const AttentionItem& item, const AttentionCall& call) const;
  void finish(int merge, const AttentionCall& call, uint8_t* scratch);

  std::vector<AttentionItem> items_;
  std::vector<AttentionMember> members_;
  struct SharedSplit {
    int32_t split;
    std::vector<int32_t> sequences;  // two or more
  };
  std::vector<SharedSplit> shared_;
  std::vector<int32_t> num_shared_;  // leading splits of each sequence that it reads with others
  std::vector<int32_t> merge_of_;    // [sequence][KV head] of those
  std::vector<AttentionMerge> merges_;
  // How many items of each merge are done; back at zero when it has been made.
  std::atomic<int32_t>* done_ = nullptr;
  Pages done_memory_;
  size_t num_done_ = 0;
  Ranks* ranks_;
  size_t partial_floats_ = 0;
  int run_ = 0;
};

}  // namespace octavo
