// Integers in NEON registers: the second factor and the sums of integer products.
#pragma once

#include <arm_neon.h>

#include "kernels/bytes.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

struct Four { int8x16_t v; };
struct Integers { int32x4_t v; };

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
