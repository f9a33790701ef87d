// The kernels of a tier as a table: those of the other units, and all that are compiled quickly.
#include "kernels/adapters.inl"
#include "kernels/elementwise.inl"
#include "kernels/gemm.inl"
#include "kernels/peak_rates.inl"
#include "kernels/sample.inl"
#include "kernels/table.h"
#include "kernels/units/units.h"

#define OCTAVO_JOIN_(a, b) a##b
#define OCTAVO_JOIN(a, b) OCTAVO_JOIN_(a, b)
#define OCTAVO_STRING_(a) #a
#define OCTAVO_STRING(a) OCTAVO_STRING_(a)

namespace octavo {

// The table is made by the first call, and none comes before the processor is known to run this
// tier: an initializer of the module would be computed with the tier's instructions on any.
const KernelTable* OCTAVO_JOIN(OCTAVO_TIER, _kernels)() {
  static const KernelTable table = [] {
    using namespace OCTAVO_TIER;
    KernelTable made{};
    made.name = OCTAVO_STRING(OCTAVO_TIER);
    made.order = kBf16Order;
    add_gemm(made);
    add_adapters(made);
    add_elementwise(made);
    add_attention(made);
    add_sampling(made);
    add_peak_rates(made);
    return made;
  }();
  return &table;
}

}  // namespace octavo
