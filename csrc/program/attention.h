// Attention of a program's layers: keys and values into the cache, and each item over the positions
// that its queries see.
//
// Where every sequence has one row (decoding), an item does everything for its KV head: it
// normalises and rotates the queries and the new key, writes the key and the value, and attends. No
// other item reads what it writes, so no barrier is needed. Otherwise all rows are finished first,
// before a barrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/attention_plan.h"
#include "program/context.h"
#include "program/instruction.h"
#include "program/rows.h"
#include "runtime/workers.h"

namespace octavo {

class Attention {
 public:
  Attention(const Context& context, const Ropes& ropes) : context_(context), ropes_(ropes) {}

  // Gives the instruction one of the plans, and makes a new one if none fits.
  void add(Instruction& i);
  // Lets the plan of a step have the sequences of a group that the instruction only writes.
  void add_kept(const Instruction& i);

  // The groups of layers that have tables of blocks of their own.
  int groups() const { return groups_; }
  // Floats of the widest rows that a thread rotates in its own memory.
  size_t widest() const { return widest_; }

  // The most bytes of partial sums of a step of so many sequences.
  size_t most_bytes(int32_t sequences, int32_t positions) const;

  // Takes the memory for so many bytes at once, where what grows later is not returned.
  void reserve(int32_t sequences, int32_t positions);

  // Plans the step for all layers.
  void plan();

  // A worker's part of the instruction.
  void run(const Instruction& i, Shares& shares, int worker_index, Worker& worker);
  // … which only keeps keys and values.
  void keep(const Instruction& i, int worker_index, Worker& worker);

 private:
  // The step's attention for all layers of one shape and window, of all rows or of the wanted ones.
  struct LayerPlan {
    AttentionShape shape;
    bool of_wanted;
    std::vector<int32_t> groups;  // of layers, each with its own tables of blocks
    AttentionPlan plan;
  };

  void take_partials(size_t bytes);
  void finish_share(const Instruction& i, int worker_index, Worker& worker) const;
  void finish_rows(const Instruction& i, int first, int end, Worker& worker) const;
  void write_latents(const Instruction& i, const SequenceRows& all, int first, int end,
                     Worker& worker) const;
  void write_echoes(const Instruction& i, int worker_index, Worker& worker) const;
  const float* finish_alone(const Instruction& i, const AttentionItem& item, Worker& worker) const;
  void attend_together(const Instruction& i, const AttentionItem& item, bool alone,
                       const AttentionCall& call, Worker& worker);
  void finish_heads(const Instruction& i, const NormShape& norm, int row, int first, int heads,
                    float* x) const;
  void rotate(const Instruction& i, float* x, size_t stride, int first, int rows, int width) const;

  const Context& context_;
  const Ropes& ropes_;
  std::vector<LayerPlan> plans_;
  int groups_ = 0;
  size_t widest_ = 0;
  // Partial sums of the plan that runs: there is a barrier between two attentions.
  Pages partials_;
  std::vector<std::vector<SequenceRows>> sequences_;  // of each group of KV blocks
  std::vector<std::vector<SequenceRows>> echoes_;     // of each group: rows kept once more
  // The same for the runs of wanted rows that follow each other; first_row counts wanted rows.
  std::vector<std::vector<SequenceRows>> wanted_sequences_;
};

}  // namespace octavo
