// A step as the first rank posts it.
#include "step/posted_step.h"

#include <cstring>
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
  each(step.row_starts, sizes.sequences + 1);
  for (const int32_t*& table : step.tables)
    each(table, int64_t{sizes.sequences} * sizes.table_width);
  each(step.logits_rows, sizes.logits);
  each(step.hidden_rows, sizes.hidden);
  each(step.echoes, sizes.echoes);
}

}  // namespace

void post_step(const StepInputs& inputs, uint32_t program, Ranks& ranks) {
  StepInputs step = inputs;
  const auto place_of = [&](const void* at) { return at ? ranks.offset_of(at) : kNothing; };
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
  sizes.logits_out = place_of(step.logits_out);
  sizes.hidden_out = place_of(step.hidden_out);
  sizes.state_out = place_of(step.state_out);
  sizes.given = place_of(step.given);
  size_t bytes = sizeof(PostedSizes) + sizes.kept * sizeof(uint64_t);
  for_each_posted(sizes, step, [&](const auto*& array, int64_t count) {
    bytes += count * sizeof *array;
  });
  uint8_t* to = ranks.room(bytes);
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
  ranks.post(Ranks::Kind::Step, program, bytes);
}

StepInputs read_step(const Ranks::Posted& posted, const Ranks& ranks) {
  PostedSizes sizes;
  std::memcpy(&sizes, posted.data, sizeof sizes);
  const auto floats_at = [&](uint64_t place) {
    return place == kNothing ? nullptr : reinterpret_cast<float*>(ranks.at(place));
  };
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
  const uint8_t* from = posted.data + sizeof sizes;
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
