// A step as the first rank posts it: its sizes, where its results go, and its numbers behind that.
#pragma once

#include "program/step.h"
#include "runtime/ranks.h"

namespace octavo {

// Posts a step of a program. Its results must lie in memory of the ranks; throws
// std::invalid_argument for a step with adapters, whose weights only one process has.
void post_step(const StepInputs& inputs, uint32_t program, Ranks& ranks);

// Returns a posted step, whose numbers stay where they were posted.
StepInputs read_step(const Ranks::Posted& posted, const Ranks& ranks);

}  // namespace octavo
