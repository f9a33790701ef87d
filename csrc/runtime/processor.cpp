// The tiers of kernels that this processor can run.
#include "runtime/processor.h"

#include <stdexcept>

#include "runtime/platform.h"
#include "runtime/self_test.h"

namespace octavo {

// CMake lists the tiers that a module has in tiers.inc, the slowest first: OCTAVO_EACH_TIER(avx2) …
#define OCTAVO_EACH_TIER(tier) \
  const KernelTable* tier##_kernels(); \
  bool tier##_runs();
#include "tiers.inc"
#undef OCTAVO_EACH_TIER

namespace {

struct Tiers {
  std::vector<const KernelTable*> runnable;
  std::vector<DroppedTier> dropped;
};

// Why a tier that the processor offers cannot be used; nothing if it can.
std::string hindrance(const KernelTable& kernels) {
  if (kernels.tiles == Tiles::None) return "";
  if (kernels.tiles == Tiles::Processor && !permit_tile_registers())
    return "the system does not let this process use tile registers (Linux does since 5.16)";
  return wrong_products(kernels);
}

Tiers find_tiers() {
  Tiers found;
  const auto add = [&](const KernelTable& kernels) {
    const std::string reason = hindrance(kernels);
    if (reason.empty()) found.runnable.push_back(&kernels);
    else found.dropped.push_back({kernels.name, reason});
  };
#define OCTAVO_EACH_TIER(tier) \
  if (tier##_runs()) add(*tier##_kernels());
#include "tiers.inc"
#undef OCTAVO_EACH_TIER
  return found;
}

const Tiers& tiers() {
  static const Tiers found = find_tiers();
  return found;
}

}  // namespace

const std::vector<const KernelTable*>& runnable_tiers() { return tiers().runnable; }

const std::vector<DroppedTier>& dropped_tiers() { return tiers().dropped; }

const KernelTable& choose_tier(const std::string& name) {
  if (name.empty()) return *runnable_tiers().back();
  std::string names;
  for (const KernelTable* tier : runnable_tiers()) {
    if (name == tier->name) return *tier;
    names += std::string(names.empty() ? "" : ", ") + tier->name;
  }
  throw std::invalid_argument("this processor does not run the instruction set '" + name +
                              "', only these: " + names);
}

}  // namespace octavo
