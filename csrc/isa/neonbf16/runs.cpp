// Reports whether this processor runs the neonbf16 tier.
// Unlike the kernels, this file is compiled for any processor.
#include "runtime/platform.h"

namespace octavo {

bool neonbf16_runs();

bool neonbf16_runs() {
  const ArmFeatures features = arm_features();
  return features.dot_products && features.int8_matrices && features.bf16;
}

}  // namespace octavo
