// Mixtures of experts: which rows each expert processes, and the products of the experts in use.
//
// A row's results are added up in the order of its experts' numbers, by one thread: the one that
// has those columns of all experts; or, where ranks have whole experts, the one that has the row,
// once all its products lie in shared memory.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "experts/balance.h"
#include "experts/copies.h"
#include "program/context.h"
#include "program/instruction.h"
#include "runtime/workers.h"

namespace octavo {

class Experts {
 public:
  explicit Experts(const Context& context) : context_(context) {}

  // Registers an instruction of a mixture.
  void add(Instruction& i);
  // How many experts each row chooses; 0 without experts.
  int top_k() const { return top_k_; }
  void reserve();
  // Of a step, without the copies of experts, which have their memory from the start.
  size_t bytes() const;

  // Chooses the experts of rows [first, end).
  void route(const Instruction& i, int first, int end) const;
  // Sorts the pairs of rows and experts by expert. For one thread.
  void sort_pairs(const Instruction& i);
  // A worker's part of the products into the experts' inner width, and of those out of it.
  void multiply_in(const Instruction& i, Shares& shares, int worker_index, Worker& worker) const;
  void multiply_out(const Instruction& i, Shares& shares, int worker_index, Worker& worker) const;
  // Adds up the products of the pairs of rows [first, end).
  void add_up(const Instruction& i, int first, int end) const;

  // Chooses experts to copy to other ranks after every so many steps; 0: never.
  void copy_after(int steps) { copy_after_ = steps; }
  // Ends a step, which all ranks end alike.
  void end_step();
  // The experts that are in two ranks.
  struct Redundant {
    int32_t mixture, expert, rank;
  };
  std::vector<Redundant> redundant() const;

 private:
  // The experts of one layer, where ranks have whole ones.
  struct Mixture {
    ExpertBalance balance;
    std::vector<Piece> in;
    std::unique_ptr<ExpertCopies> copies;  // nullptr: no expert is in two ranks
  };
  // An expert on its way to another rank, and its bytes that are there.
  struct Copying {
    size_t mixture;
    ExpertBalance::Copy copy;
    size_t bytes = 0;
  };

  int rank() const { return context_.team.ranks() ? context_.team.ranks()->rank() : 0; }
  Share share_of_panels(const Instruction& i) const;
  Matrix matrix_of(const Instruction& i, const ExpertPart& part, int product) const;
  void find_parts(const Instruction& i);

  const Context& context_;
  int top_k_ = 0;
  std::vector<Mixture> mixtures_;
  std::deque<Copying> copying_;
  int copy_after_ = 0;
  int64_t steps_ = 0;
  std::vector<int32_t> pair_rows_;    // [pairs], by expert and then by row: which row
  std::vector<float> pair_weights_;   // in the same order
  std::vector<int32_t> pair_starts_;  // [experts + 1]
  std::vector<ExpertPart> parts_;     // those of this rank
  std::vector<int32_t> row_pairs_;    // [rows, top_k], whole experts: the pairs of each row
};

}  // namespace octavo
