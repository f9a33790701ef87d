// The tiers of kernels that this processor can run.
#include "runtime/processor.h"

#include <stdexcept>

namespace octavo {

// CMake lists the tiers that it builds in tiers.inc, the slowest first: OCTAVO_EACH_TIER(avx2) …
#define OCTAVO_EACH_TIER(tier) \
  const KernelTable* tier##_kernels(); \
  bool tier##_runs();
#include "tiers.inc"
#undef OCTAVO_EACH_TIER

std::vector<const KernelTable*> runnable_tiers() {
  std::vector<const KernelTable*> tiers;
#define OCTAVO_EACH_TIER(tier) \
  if (tier##_runs()) tiers.push_back(tier##_kernels());
#include "tiers.inc"
#undef OCTAVO_EACH_TIER
  return tiers;
}

const KernelTable& choose_tier(const std::string& name) {
  const auto tiers = runnable_tiers();
  if (name.empty()) return *tiers.back();
  std::string names;
  for (const KernelTable* tier : tiers) {
    if (name == tier->name) return *tier;
    names += std::string(names.empty() ? "" : ", ") + tier->name;
  }
  throw std::invalid_argument("this processor does not run the instruction set '" + name +
                              "', only these: " + names);
}

}  // namespace octavo
