// The further nodes of ranks that add up, as the program of the first one knows them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "link/frame_link.h"
#include "program/step.h"
#include "step/posted_step.h"

namespace octavo {

class FurtherNodes {
 public:
  // A link to each, and how many columns of the logits each node has; 0: the first has all.
  FurtherNodes(std::vector<std::shared_ptr<FrameLink>> links, int32_t columns)
      : links_(std::move(links)), columns_(columns) {}

  // Sends all a step, which they compute while this node does. Throws std::runtime_error if one has
  // ended.
  void send(const StepInputs& in);
  // The same for the copy of a block, which has no answer.
  void copy(const BlockCopy& copy);
  // Waits until all have computed the step, and puts their columns beside those of this node.
  // Throws std::runtime_error if one has failed or ended.
  void receive(const StepInputs& in, int64_t stride);

 private:
  template <typename Each>
  void for_each(Each each);
  void take(const FrameLink::Frame& frame, int32_t first, const StepInputs& in, int64_t stride);

  const std::vector<std::shared_ptr<FrameLink>> links_;
  const int32_t columns_;
};

}  // namespace octavo
