// Mixtures of experts: which rows each expert processes, and the products of the experts in use.
//
// A row's results are added up in the order of its experts' numbers, by the one thread that has
// those columns.
#pragma once

#include <cstdint>
#include <vector>

#include "program/context.h"
#include "program/instruction.h"
#include "runtime/workers.h"

namespace octavo {

class Experts {
 public:
  explicit Experts(const Context& context) : context_(context) {}

  // Registers a Route instruction.
  void add(const Instruction& i);
  // How many experts each row chooses; 0 without experts.
  int top_k() const { return top_k_; }
  void reserve();
  size_t bytes() const {
    return pair_rows_.size() * sizeof(int32_t) + pair_weights_.size() * sizeof(float);
  }

  // Chooses the experts of rows [first, end).
  void route(const Instruction& i, int first, int end) const;
  // Sorts the pairs of rows and experts by expert. For one thread.
  void sort_pairs(const Instruction& i);
  // A worker's part of the products into the experts' inner width, and of those out of it.
  void multiply_in(const Instruction& i, Shares& shares, int worker_index, Worker& worker) const;
  void multiply_out(const Instruction& i, Shares& shares, int worker_index, Worker& worker) const;

 private:
  const Context& context_;
  int top_k_ = 0;
  std::vector<int32_t> pair_rows_;    // [pairs], by expert and then by row: which row
  std::vector<float> pair_weights_;   // in the same order
  std::vector<int32_t> pair_starts_;  // [experts + 1]
};

}  // namespace octavo
