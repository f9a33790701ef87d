// The further stages of a pipeline.
#include "step/stages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "program/program.h"
#include "runtime/ranks.h"

namespace octavo {

namespace {

// What a frame of a step begins with. Its copies, arrays and rows follow.
struct Sizes {
  int32_t rows, sequences, table_width, groups, logits, hidden, has_types, copies, width;

  bool are_possible() const {
    for (const int32_t each : {rows, sequences, table_width, groups, logits, hidden, copies, width})
      if (each < 0) return false;
    return copies % 3 == 0;
  }
};

// Calls each(array, count) for the numbers of a step, in the order in which they are sent.
template <typename Each>
void for_each_array(const Sizes& sizes, StepInputs& step, Each each) {
  each(step.token_ids, int64_t{sizes.rows});
  each(step.positions, int64_t{sizes.rows});
  if (sizes.has_types) each(step.types, int64_t{sizes.rows});
  each(step.row_starts, int64_t{sizes.sequences} + 1);
  for (const int32_t*& table : step.tables)
    each(table, int64_t{sizes.sequences} * sizes.table_width);
  each(step.logits_rows, int64_t{sizes.logits});
  each(step.hidden_rows, int64_t{sizes.hidden});
}

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

void FurtherStage::copy(int32_t source, int32_t destination, int32_t group) {
  copies_.insert(copies_.end(), {source, destination, group});
}

void FurtherStage::compute(const StepInputs& in, const RowsAt& rows, const RowsAt& out) {
  try {
    send(in, rows);
    receive(out);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("stage " + std::to_string(number_) + ": " + error.what());
  }
}

void FurtherStage::send(const StepInputs& in, const RowsAt& rows) {
  StepInputs step = in;
  const Sizes sizes{in.num_rows, in.sequences, in.table_width,
                    static_cast<int32_t>(in.tables.size()), in.num_logits, in.num_hidden,
                    in.types != nullptr, static_cast<int32_t>(copies_.size()), rows.width};
  std::vector<uint8_t> content;
  const auto add = [&](const void* data, size_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    if (bytes > 0) content.insert(content.end(), from, from + bytes);
  };
  add(&sizes, sizeof sizes);
  add(copies_.data(), copies_.size() * 4);
  for_each_array(sizes, step, [&](const int32_t*& array, int64_t count) { add(array, count * 4); });
  const size_t row_bytes = sizeof(float) * rows.width;
  content.reserve(content.size() + row_bytes * rows.rows);
  for (int32_t row = 0; row < rows.rows; ++row) add(rows.data + row * rows.stride, row_bytes);
  link_->send(FrameLink::Kind::Step, content);
  copies_.clear();
}

void FurtherStage::receive(const RowsAt& out) {
  const FrameLink::Frame frame = link_->receive();
  const std::vector<uint8_t>& content = frame.content;
  if (frame.kind == FrameLink::Kind::Failure)
    throw std::runtime_error(std::string(content.begin(), content.end()));
  // Rows lie apart as in the memory of the stage.
  const size_t apart = out.rows ? content.size() / out.rows : 0, bytes = sizeof(float) * out.width;
  if (frame.kind != FrameLink::Kind::Rows || content.size() != apart * out.rows ||
      (out.rows && apart < bytes))
    throw std::runtime_error("it has sent something else than the rows of its step");
  for (int32_t row = 0; row < out.rows; ++row)
    std::memcpy(out.data + row * out.stride, content.data() + row * apart, bytes);
}

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
