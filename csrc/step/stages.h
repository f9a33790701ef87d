// The further stages of a pipeline: other processes, each of which computes some layers of every
// step and keeps what these layers keep.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "program/kv_cache.h"
#include "program/step.h"
#include "link/frame_link.h"

namespace octavo {

class Program;

// Rows of floats in the caller's memory.
struct RowsAt {
  float* data = nullptr;
  int32_t rows = 0;
  int32_t width = 0;
  int64_t stride = 0;  // floats
};

// A further stage, as the engine's process knows it.
class FurtherStage {
 public:
  FurtherStage(std::shared_ptr<FrameLink> link, int number)
      : link_(std::move(link)), number_(number) {}

  // Copies a block of the stage's own cache before its next step.
  void copy(int32_t source, int32_t destination, int32_t group);
  // Sends the stage a step with its rows; waits for those that it makes of them.
  // Throws std::runtime_error if the stage fails or has ended.
  void compute(const StepInputs& in, const RowsAt& rows, const RowsAt& out);

 private:
  void send(const StepInputs& in, const RowsAt& rows);
  void receive(const RowsAt& out);

  std::shared_ptr<FrameLink> link_;
  const int number_;  // from 1 on
  std::vector<int32_t> copies_;  // three numbers each
};

// Computes the steps of a stage until something else comes, and returns that.
FrameLink::Frame follow_steps(FrameLink& link, Program& program, KvCache& cache);

}  // namespace octavo
