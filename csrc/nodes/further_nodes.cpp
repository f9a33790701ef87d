// The further nodes of ranks that add up.
#include "nodes/further_nodes.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace octavo {

template <typename Each>
void FurtherNodes::for_each(Each each) {
  for (size_t link = 0; link < links_.size(); ++link) {
    const int32_t node = static_cast<int32_t>(link) + 1;
    try {
      each(*links_[link], node);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error("node " + std::to_string(node) + ": " + error.what());
    }
  }
}

void FurtherNodes::send(const StepInputs& in) {
  const std::vector<uint8_t> content = written_step(in);
  for_each([&](FrameLink& link, int32_t) { link.send(FrameLink::Kind::Step, content); });
}

void FurtherNodes::copy(const BlockCopy& copy) {
  const auto* data = reinterpret_cast<const uint8_t*>(&copy);
  for_each([&](FrameLink& link, int32_t) { link.send(FrameLink::Kind::Copy, data, sizeof copy); });
}

void FurtherNodes::receive(const StepInputs& in, int64_t stride) {
  for_each([&](FrameLink& link, int32_t node) {
    take(link.receive(), node * columns_, in, stride);
  });
}

void FurtherNodes::take(const FrameLink::Frame& frame, int32_t first, const StepInputs& in,
                        int64_t stride) {
  if (frame.kind == FrameLink::Kind::Failure)
    throw std::runtime_error(std::string(frame.content.begin(), frame.content.end()));
  const size_t bytes = sizeof(float) * columns_;
  if (frame.kind != FrameLink::Kind::Rows || frame.content.size() != bytes * in.num_logits)
    throw std::runtime_error("it has sent something else than its columns of the step");
  for (int32_t row = 0; row < in.num_logits && bytes > 0; ++row)
    std::memcpy(in.logits_out + row * stride + first, frame.content.data() + row * bytes, bytes);
}

}  // namespace octavo
