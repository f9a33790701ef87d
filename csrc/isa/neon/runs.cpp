// Reports whether this processor runs the neon tier.
// Unlike the kernels, this file is compiled for any processor.
#include "runtime/platform.h"

namespace octavo {

bool neon_runs();

bool neon_runs() { return arm_features().dot_products; }

}  // namespace octavo
