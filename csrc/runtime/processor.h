// The tiers of kernels that this processor can run.
#pragma once

#include <string>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// Every tier that was built and that this processor runs, the slowest first.
std::vector<const KernelTable*> runnable_tiers();

// The tier of this name, or the best one for an empty name; throws std::invalid_argument with
// the names of the others.
const KernelTable& choose_tier(const std::string& name);

}  // namespace octavo
