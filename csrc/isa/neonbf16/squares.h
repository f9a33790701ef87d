// Sums of products of matrices (BFMMLA, USMMLA): each register has those of two rows with two
// outputs.
#pragma once

#include <arm_neon.h>

#include "kernels/bytes.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Four inputs (bf16) or eight (bytes) of two rows.
inline uint8x16_t two_rows(const uint8_t* row, const uint8_t* next) {
  return vcombine_u8(vld1_u8(row), vld1_u8(next));
}

// Twice as many inputs of four outputs, two in each register. `first` and `second` have two inputs
// (bf16) or four (bytes) of all of them.
struct FourOutputs {
  uint8x16_t low, high;
};
OCTAVO_INLINE FourOutputs four_outputs(uint8x16_t first, uint8x16_t second) {
  const uint32x4_t a = vreinterpretq_u32_u8(first), b = vreinterpretq_u32_u8(second);
  return {vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
