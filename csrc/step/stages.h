// A further stage of a pipeline: another process, which computes some layers of every step and
// keeps what these layers keep.
#pragma once

#include "link/frame_link.h"
#include "program/kv_cache.h"

namespace octavo {

class Program;

// Computes the steps of a stage until something else comes, and returns that.
FrameLink::Frame follow_steps(FrameLink& link, Program& program, KvCache& cache);

}  // namespace octavo
