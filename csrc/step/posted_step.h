// A step as the first rank posts it: its sizes, where its results go, and its numbers behind that.
// And, between steps, an adapter for a slot, or the copy of a block.
#pragma once

#include <cstdint>
#include <vector>

#include "program/step.h"
#include "runtime/ranks.h"

namespace octavo {

// Posts a step of a program. Its results must lie in memory of the ranks.
void post_step(const StepInputs& inputs, uint32_t program, Ranks& ranks);

// Returns a posted step, whose numbers stay where they were posted.
StepInputs read_step(const Ranks::Posted& posted, const Ranks& ranks);

// A step for another node, in whose memory results have other places.
std::vector<uint8_t> written_step(const StepInputs& inputs);
// Returns it, with its numbers where they are in the content. Throws std::runtime_error if that is
// no step.
StepInputs read_written_step(const std::vector<uint8_t>& content);

// A block of a group that becomes a copy of another.
struct BlockCopy {
  int32_t source, destination, group;
};

void post_copy(const BlockCopy& copy, uint32_t program, Ranks& ranks);
BlockCopy read_copy(const Ranks::Posted& posted);

// What a slot for adapters has from the next step on.
struct PostedAdapter {
  int32_t slot = 0;
  float scale = 1.0f;
  uint64_t place = 0;  // in the memory of the ranks; 0: there is none
};

void post_adapter(const PostedAdapter& adapter, uint32_t program, Ranks& ranks);
PostedAdapter read_adapter(const Ranks::Posted& posted);

}  // namespace octavo
