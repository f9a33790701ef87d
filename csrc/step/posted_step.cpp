// A step as the first rank posts it.
#include "step/posted_step.h"

#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace octavo {

namespace {

constexpr uint64_t kNothing = ~uint64_t{0};

struct PostedSizes {
  int32_t rows, sequences, table_width, groups, logits, hidden, kept, echoes;
  int32_t has_types, has_adapters;
  Part part;
  int64_t state_stride;
  // Places in the memory of the ranks.
  uint64_t logits_out, hidden_out, state_out, given;
};

// Goes through the numbers of a step in the order in which they are posted.
template <typename Each>
void for_each_posted(const PostedSizes& sizes, StepInputs& step, Each each) {
  each(step.token_ids, sizes.rows);
  each(step.positions, sizes.rows);
  if (sizes.has_types) each(step.types, sizes.rows);
  if (sizes.has_adapters) each(step.adapters, sizes.rows);
  each(step.row_starts, int64_t{sizes.sequences} + 1);
  for (const int32_t*& table : step.tables)
    each(table, int64_t{sizes.sequences} * sizes.table_width);
  each(step.logits_rows, sizes.logits);
  each(step.hidden_rows, sizes.hidden);
  each(step.echoes, sizes.echoes);
}

PostedSizes sizes_of(const StepInputs& step) {
  PostedSizes sizes{};
  sizes.rows = step.num_rows;
  sizes.sequences = step.sequences;
  sizes.table_width = step.table_width;
  sizes.groups = static_cast<int32_t>(step.tables.size());
  sizes.logits = step.num_logits;
  sizes.hidden = step.num_hidden;
  sizes.kept = static_cast<int32_t>(step.kept_out.size());
  sizes.echoes = step.num_echoes;
  sizes.part = step.part;
  sizes.has_types = step.types != nullptr;
  sizes.has_adapters = step.adapters != nullptr;
  sizes.state_stride = step.state_stride;
  sizes.logits_out = sizes.hidden_out = sizes.state_out = sizes.given = kNothing;
  return sizes;
}

size_t bytes_of(const PostedSizes& sizes, const StepInputs& inputs) {
  StepInputs step = inputs;
  size_t bytes = sizeof(PostedSizes) + sizes.kept * sizeof(uint64_t);
  for_each_posted(sizes, step, [&](const auto*& array, int64_t count) {
    bytes += count * sizeof *array;
  });
  return bytes;
}

// Writes a step, and the places of its kept results.
template <typename PlaceOf>
void write(const PostedSizes& sizes, const StepInputs& inputs, PlaceOf place_of, uint8_t* to) {
  StepInputs step = inputs;
  std::memcpy(to, &sizes, sizeof sizes);
  to += sizeof sizes;
  for (const float* kept : step.kept_out) {
    const uint64_t place = place_of(kept);
    std::memcpy(to, &place, sizeof place);
    to += sizeof place;
  }
  for_each_posted(sizes, step, [&](const auto*& array, int64_t count) {
    if (count > 0) std::memcpy(to, array, count * sizeof *array);
    to += count * sizeof *array;
  });
}

template <typename FloatsAt>
StepInputs read(const uint8_t* from, FloatsAt floats_at) {
  PostedSizes sizes;
  std::memcpy(&sizes, from, sizeof sizes);
  StepInputs step;
  step.part = sizes.part;
  step.num_rows = sizes.rows;
  step.sequences = sizes.sequences;
  step.table_width = sizes.table_width;
  step.tables.resize(sizes.groups);
  step.num_logits = sizes.logits;
  step.num_hidden = sizes.hidden;
  step.num_echoes = sizes.echoes;
  step.state_stride = sizes.state_stride;
  step.logits_out = floats_at(sizes.logits_out);
  step.hidden_out = floats_at(sizes.hidden_out);
  step.state_out = floats_at(sizes.state_out);
  step.given = floats_at(sizes.given);
  from += sizeof sizes;
  for (int32_t kept = 0; kept < sizes.kept; ++kept) {
    uint64_t place;
    std::memcpy(&place, from, sizeof place);
    from += sizeof place;
    step.kept_out.push_back(floats_at(place));
  }
  for_each_posted(sizes, step, [&](auto*& array, int64_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(from);
    from += count * sizeof *array;
  });
  return step;
}

// Whether so many bytes are a step of these sizes, which another process has sent.
bool are_sizes_of(const PostedSizes& sizes, size_t bytes) {
  for (const int32_t each : {sizes.rows, sizes.sequences, sizes.table_width, sizes.groups,
                             sizes.logits, sizes.hidden, sizes.kept, sizes.echoes})
    if (each < 0) return false;
  const auto there = static_cast<int64_t>(bytes);
  if (sizes.part != Part::Whole || sizes.groups > there || sizes.kept > there) return false;
  StepInputs step;
  step.tables.resize(sizes.groups);
  int64_t needed = sizeof(PostedSizes) + int64_t{sizes.kept} * sizeof(uint64_t);
  for_each_posted(sizes, step, [&](const auto*& array, int64_t count) {
    if (count > there) needed = there + 1;  // which may not be multiplied
    else if (needed <= there) needed += count * sizeof *array;
  });
  return needed == there;
}

}  // namespace

void post_step(const StepInputs& inputs, uint32_t program, Ranks& ranks) {
  const auto place_of = [&](const void* at) { return at ? ranks.offset_of(at) : kNothing; };
  PostedSizes sizes = sizes_of(inputs);
  sizes.logits_out = place_of(inputs.logits_out);
  sizes.hidden_out = place_of(inputs.hidden_out);
  sizes.state_out = place_of(inputs.state_out);
  sizes.given = place_of(inputs.given);
  const size_t bytes = bytes_of(sizes, inputs);
  write(sizes, inputs, place_of, ranks.room(bytes));
  ranks.post(Ranks::Kind::Step, program, bytes);
}

StepInputs read_step(const Ranks::Posted& posted, const Ranks& ranks) {
  return read(posted.data, [&](uint64_t place) {
    return place == kNothing ? nullptr : reinterpret_cast<float*>(ranks.at(place));
  });
}

std::vector<uint8_t> written_step(const StepInputs& inputs) {
  const PostedSizes sizes = sizes_of(inputs);
  std::vector<uint8_t> content(bytes_of(sizes, inputs));
  write(sizes, inputs, [](const float*) { return kNothing; }, content.data());
  return content;
}

StepInputs read_written_step(const std::vector<uint8_t>& content) {
  PostedSizes sizes;
  if (content.size() < sizeof sizes) throw std::runtime_error("a step without its sizes");
  std::memcpy(&sizes, content.data(), sizeof sizes);
  if (!are_sizes_of(sizes, content.size()))
    throw std::runtime_error("a step of another size than it says");
  return read(content.data(), [](uint64_t) { return static_cast<float*>(nullptr); });
}

void post_copy(const BlockCopy& copy, uint32_t program, Ranks& ranks) {
  std::memcpy(ranks.room(sizeof copy), &copy, sizeof copy);
  ranks.post(Ranks::Kind::Copy, program, sizeof copy);
}

BlockCopy read_copy(const Ranks::Posted& posted) {
  BlockCopy copy;
  std::memcpy(&copy, posted.data, sizeof copy);
  return copy;
}

void post_adapter(const PostedAdapter& adapter, uint32_t program, Ranks& ranks) {
  std::memcpy(ranks.room(sizeof adapter), &adapter, sizeof adapter);
  ranks.post(Ranks::Kind::Adapter, program, sizeof adapter);
}

PostedAdapter read_adapter(const Ranks::Posted& posted) {
  PostedAdapter adapter;
  std::memcpy(&adapter, posted.data, sizeof adapter);
  return adapter;
}

}  // namespace octavo
