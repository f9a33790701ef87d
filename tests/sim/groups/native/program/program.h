// The program of a simulated stage, or of the first rank of a node: in place of
// csrc/program/program.h.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "program/step.h"
#include "step/posted_step.h"

namespace octavo {

class Program {
 public:
  Program(int64_t stride, std::function<void(const StepInputs&)> compute)
      : stride_(stride), compute_(std::move(compute)) {}

  // That of a node's first rank, whose logits have so many columns.
  Program(int64_t columns, Ranks& ranks, std::function<void(const StepInputs&)> lead,
          std::function<void(const BlockCopy&)> copy)
      : stride_(columns), compute_(std::move(lead)), ranks_(&ranks), copy_(std::move(copy)) {}

  void run(const StepInputs& inputs) {
    rows_ = inputs.num_rows;
    compute_(inputs);
  }
  int64_t state_stride() const { return stride_; }
  int state_rows() const { return rows_; }
  Ranks* ranks() const { return ranks_; }  // none: a simulated stage is one process
  int64_t logits_stride() const { return stride_; }
  void lead_node(const StepInputs& inputs) { compute_(inputs); }
  void copy_block(const BlockCopy& copy) { copy_(copy); }

 private:
  const int64_t stride_;
  const std::function<void(const StepInputs&)> compute_;
  Ranks* const ranks_ = nullptr;
  const std::function<void(const BlockCopy&)> copy_;
  int rows_ = 0;
};

}  // namespace octavo
