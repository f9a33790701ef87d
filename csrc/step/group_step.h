// How ranks compute a step together: the first one posts it, and all compute their share.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>

#include "step/posted_step.h"

namespace octavo {

// Posts a step of a program, computes the first rank's share, and waits for those of the others.
// Throws std::runtime_error if the group has ended; what this rank cannot compute ends it.
template <typename Compute>
void lead_step(const StepInputs& inputs, uint32_t program, Ranks& ranks, Compute compute) {
  const std::unique_lock<std::mutex> turn = ranks.turn();
  post_step(inputs, program, ranks);
  try {
    compute();
  } catch (const std::exception& error) {  // the others wait for this rank
    ranks.end(error.what());
    throw;
  }
  ranks.wait();
}

// Computes a further rank's share of what the first one posts, compute(posted), until that is a
// message, which it returns: the caller handles it, and then calls `Ranks::finish`. For what this
// rank cannot compute, which is thrown, the caller ends the group, and names the rank.
template <typename Compute>
Ranks::Posted next_message(Ranks& ranks, Compute compute) {
  for (;;) {
    const Ranks::Posted posted = ranks.next();
    if (posted.kind == Ranks::Kind::Message) return posted;
    compute(posted);
    ranks.finish();
  }
}

}  // namespace octavo
