// The program of a simulated stage: in place of csrc/program/program.h.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "program/step.h"

namespace octavo {

class Ranks;

class Program {
 public:
  Program(int64_t stride, std::function<void(const StepInputs&)> compute)
      : stride_(stride), compute_(std::move(compute)) {}

  void run(const StepInputs& inputs) {
    rows_ = inputs.num_rows;
    compute_(inputs);
  }
  int64_t state_stride() const { return stride_; }
  int state_rows() const { return rows_; }
  Ranks* ranks() const { return nullptr; }  // a simulated stage is one process

 private:
  const int64_t stride_;
  const std::function<void(const StepInputs&)> compute_;
  int rows_ = 0;
};

}  // namespace octavo
