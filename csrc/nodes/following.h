// A further node of ranks that add up: its first rank takes steps from the first node.
#pragma once

#include <cstdint>

#include "link/frame_link.h"

namespace octavo {

class Program;

// Computes the steps of the first node with this node's ranks until something else comes, and
// returns that. The node has so many columns of the logits, from the first on.
FrameLink::Frame follow_first_node(FrameLink& link, Program& program, int32_t first,
                                   int32_t columns);

}  // namespace octavo
