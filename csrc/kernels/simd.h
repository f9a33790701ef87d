// Floats: as many fp32 numbers as the registers of the tier hold (1 to 16), and the operations that
// kernels use on them. Each tier defines them in its own floats.h. Every function returns the same
// bits in every tier: IEEE operations only, and a multiplication and an addition are fused where
// the source says `fma` and nowhere else. What a tier must define:
//
//   load, store              kLanes numbers, unaligned
//   load_first, store_first  the first n lanes, 0 ≤ n ≤ kLanes; the other lanes are zero, and the
//                            memory after them is not touched
//   load_half                fp16 numbers, as fp32
//   load_bf16<Which>         the first (0) or the second (1) of each pair of bf16 numbers, as fp32
//   max, min                 return the second argument if either is NaN: max(limit, x) and
//                            min(limit, x) keep a NaN in x
//   with_sign_of             the sign of one number on another that is not negative
//   power_of_two             2^n for whole n in [-126, 127]
//
// Like all kernel files this is compiled once per tier: OCTAVO_TIER names the namespace. No
// function from the C++ library is used, because the linker could pick the copy of an inline
// function that was compiled for a newer processor.
#pragma once

#include <floats.h>

#include <cstddef>
#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/table.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kPanelVectors = kPanel / kLanes;

// Brings the line that holds p to L2 (not to L1, which what is in use now would have to leave).
// p may lie beyond the end of a buffer: nothing is read.
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
// The same of what will be written.
inline void prefetch_to_write(const void* p) { __builtin_prefetch(p, 1, 2); }

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
