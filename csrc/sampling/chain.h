// Runs a chain of samplers, as the reference (octavo/backends/torch/sampling/chain.py) defines it.
#pragma once

#include <cstdint>

#include "sampling/draw.h"

namespace octavo {

// Puts the tokens that a chain leaves of a finite row into scratch.tokens; of a row in which all
// are forbidden, the likeliest. Returns the temperature by which they are drawn.
double run_chain(const KernelTable& kernels, int size, const Draw& draw, int32_t likeliest,
                 DrawScratch& scratch);

// The surprise, in bits, of one of the tokens that a chain has left; 0 where all were forbidden.
double surprise_of(const KernelTable& kernels, double temperature, int32_t token,
                   DrawScratch& scratch);

}  // namespace octavo
