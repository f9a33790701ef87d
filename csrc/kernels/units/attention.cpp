// Attention, the largest unit of a tier.
#include "kernels/attention.inl"
#include "kernels/units/units.h"

namespace octavo {
namespace OCTAVO_TIER {

void add_attention(KernelTable& table) {
  table.write_kv = attend::write_kv;
  table.attention_scratch = attend::attention_scratch;
  table.attention_partial_floats = attend::attention_partial_floats;
  table.attention = attend::attention;
  table.attention_together = attend::attention_together;
  table.merge_attention = attend::merge_attention;
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
