// A further node of ranks that add up.
#include "nodes/following.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/arena.h"
#include "runtime/ranks.h"
#include "step/posted_step.h"

namespace octavo {

namespace {

// The logits of a step, where all ranks of the node put theirs, and the node's columns of them.
class NodeLogits {
 public:
  NodeLogits(int32_t first, int32_t columns) : first_(first), columns_(columns) {}

  float* room(size_t floats, Ranks& ranks) {
    if (floats * sizeof(float) > pages_.bytes())  // by doubling, since memory of ranks has to last
      pages_ = ranks.lend(std::bit_ceil(floats * sizeof(float)), false);
    return reinterpret_cast<float*>(pages_.data());
  }

  void send(FrameLink& link, int32_t rows, int64_t stride) {
    const size_t bytes = sizeof(float) * columns_;
    content_.resize(bytes * rows);
    for (int32_t row = 0; row < rows && bytes > 0; ++row)
      std::memcpy(content_.data() + row * bytes,
                  reinterpret_cast<const float*>(pages_.data()) + row * stride + first_, bytes);
    link.send(FrameLink::Kind::Rows, content_);
  }

 private:
  const int32_t first_, columns_;
  Pages pages_;
  std::vector<uint8_t> content_;
};

void follow_step(FrameLink& link, Program& program, const std::vector<uint8_t>& content,
                 NodeLogits& logits) {
  StepInputs in = read_written_step(content);
  const int64_t stride = program.logits_stride();
  const int64_t floats = std::max(in.num_logits, 1) * std::max<int64_t>(stride, 1);
  in.logits_out = logits.room(floats, *program.ranks());
  program.lead_node(in);
  logits.send(link, in.num_logits, stride);
}

void follow_copy(Program& program, const std::vector<uint8_t>& content) {
  BlockCopy copy;
  if (content.size() != sizeof copy) throw std::runtime_error("a copy of another size");
  std::memcpy(&copy, content.data(), sizeof copy);
  program.copy_block(copy);
}

void say_why(FrameLink& link, const std::string& why) {
  try {
    link.send(FrameLink::Kind::Failure, reinterpret_cast<const uint8_t*>(why.data()), why.size());
  } catch (const FrameLink::Ended&) {
    return;  // the first node has ended, and needs no reason
  }
}

}  // namespace

FrameLink::Frame follow_first_node(FrameLink& link, Program& program, int32_t first,
                                   int32_t columns) {
  if (!program.ranks() || first < 0 || columns < 0 || first + columns > program.logits_stride())
    throw std::invalid_argument("a node has some columns of the logits, and ranks");
  NodeLogits logits(first, columns);
  for (;;) {
    FrameLink::Frame frame = link.receive();
    if (frame.kind != FrameLink::Kind::Step && frame.kind != FrameLink::Kind::Copy) return frame;
    try {
      if (frame.kind == FrameLink::Kind::Copy) follow_copy(program, frame.content);
      else follow_step(link, program, frame.content, logits);
    } catch (const std::exception& error) {
      say_why(link, error.what());
      throw;
    }
  }
}

}  // namespace octavo
