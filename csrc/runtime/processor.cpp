// Which kernels this processor can run.
#include "runtime/processor.h"

#include <stdexcept>

namespace octavo {

std::vector<const KernelTable*> runnable_tiers() {
  std::vector<const KernelTable*> tiers{scalar_kernels()};
#ifdef OCTAVO_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  const bool vnni = avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  if (avx2) tiers.push_back(avx2_kernels());
  if (vnni) tiers.push_back(avx512vnni_kernels());
  if (vnni && __builtin_cpu_supports("avx512bf16")) tiers.push_back(avx512bf16_kernels());
#endif
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
  throw std::invalid_argument("instruction set '" + name + "' is not one this processor runs: " +
                              names);
}

}  // namespace octavo
