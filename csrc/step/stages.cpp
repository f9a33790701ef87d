// A further stage of a pipeline.
#include "step/stages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "program/program.h"
#include "runtime/ranks.h"
#include "step/stage_frame.h"

namespace octavo {

namespace {

// A step that has come, with the memory of its frame.
struct ReceivedStep {
  Sizes sizes{};
  const int32_t* copies = nullptr;
  StepInputs in;
};

ReceivedStep read(const std::vector<uint8_t>& content) {
  ReceivedStep step;
  if (content.size() < sizeof(Sizes)) throw std::runtime_error("a step without its sizes");
  std::memcpy(&step.sizes, content.data(), sizeof(Sizes));
  const Sizes& sizes = step.sizes;
  if (!sizes.are_possible() || sizes.groups > static_cast<int64_t>(content.size()))
    throw std::runtime_error("a step of impossible sizes");
  StepInputs& in = step.in;
  in.num_rows = sizes.rows;
  in.sequences = sizes.sequences;
  in.table_width = sizes.table_width;
  in.num_logits = sizes.logits;
  in.num_hidden = sizes.hidden;
  in.state_stride = sizes.width;
  in.tables.resize(sizes.groups);
  const auto there = static_cast<int64_t>(content.size() - sizeof(Sizes));
  int64_t numbers = int64_t{sizes.rows} * sizes.width;
  const auto count_in = [&](int64_t count) {
    if (numbers <= there) numbers += count;  // else it is too large already
  };
  count_in(sizes.copies);
  for_each_array(sizes, in, [&](const int32_t*&, int64_t count) { count_in(count); });
  if (numbers > there || numbers * 4 != there)
    throw std::runtime_error("a step of another size than it says");
  const auto* from = reinterpret_cast<const int32_t*>(content.data() + sizeof(Sizes));
  step.copies = from;
  from += sizes.copies;
  for_each_array(sizes, in, [&](const int32_t*& array, int64_t count) {
    array = from;
    from += count;
  });
  in.given = reinterpret_cast<const float*>(from);
  return step;
}

// Floats where all ranks of a stage see them.
class SharedFloats {
 public:
  float* room(size_t count, Ranks* ranks) {
    if (count * sizeof(float) > pages_.bytes())  // by doubling, since memory of ranks has to last
      pages_ = pages_to_return(ranks, std::bit_ceil(count * sizeof(float)), false);
    return reinterpret_cast<float*>(pages_.data());
  }

 private:
  Pages pages_;
};

struct StepMemory {
  SharedFloats given, answer;
};

void compute(FrameLink& link, Program& program, KvCache& cache,
             const std::vector<uint8_t>& content, StepMemory& memory) {
  ReceivedStep step = read(content);
  for (int32_t at = 0; at < step.sizes.copies; at += 3)
    cache.copy_block(step.copies[at], step.copies[at + 1], step.copies[at + 2]);
  const int64_t rows = std::max(step.sizes.rows, 1), stride = program.state_stride();
  if (Ranks* ranks = program.ranks()) {
    const int64_t count = int64_t{step.sizes.rows} * step.sizes.width;
    float* given = memory.given.room(std::max<int64_t>(count, 1), ranks);
    std::copy_n(step.in.given, count, given);
    step.in.given = given;
  }
  step.in.state_out = memory.answer.room(rows * std::max<int64_t>(stride, 1), program.ranks());
  program.run(step.in);
  link.send(FrameLink::Kind::Rows, reinterpret_cast<const uint8_t*>(step.in.state_out),
            sizeof(float) * stride * program.state_rows());
}

}  // namespace

FrameLink::Frame follow_steps(FrameLink& link, Program& program, KvCache& cache) {
  StepMemory memory;
  for (;;) {
    FrameLink::Frame frame = link.receive();
    if (frame.kind != FrameLink::Kind::Step) return frame;
    try {
      compute(link, program, cache, frame.content, memory);
    } catch (const std::exception& error) {
      const std::string why = error.what();
      link.send(FrameLink::Kind::Failure, reinterpret_cast<const uint8_t*>(why.data()), why.size());
      throw;
    }
  }
}

}  // namespace octavo
