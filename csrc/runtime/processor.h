// The tiers of kernels that this processor can run.
#pragma once

#include <string>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// Every tier that was built and that this processor runs, the slowest first. The first call asks
// the system for the memory of tile registers, and tests the tiers that have them: it must come
// before the process gives up its privileges.
const std::vector<const KernelTable*>& runnable_tiers();

// A tier that the processor offers and that is not used, and why.
struct DroppedTier {
  std::string name, reason;
};
const std::vector<DroppedTier>& dropped_tiers();

// The tier of this name, or the best one for an empty name; throws std::invalid_argument with
// the names of the others.
const KernelTable& choose_tier(const std::string& name);

}  // namespace octavo
