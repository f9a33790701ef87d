// Registers of NEON, as the compiler has to see them.
#pragma once

#include "kernels/bytes.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Makes the compiler believe that the value is read and changed here.
template <typename Register>
OCTAVO_INLINE void keep(Register& one) { __asm__ volatile("" : "+w"(one.v)); }

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
