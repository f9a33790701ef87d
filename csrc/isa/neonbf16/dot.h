// Integer products by USDOT: codes are unsigned, activations signed. Several rows are multiplied by
// USMMLA.
#pragma once

#include <integers.h>

#include "kernels/group_layout.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

struct Codes {
  uint8x16_t v;

  // The products of a panel with two rows or more (matrix_codes.h), as `add_groups` of
  // kernels/gemm_quantized.inl makes them with any number.
  template <Format format, int rows>
    requires(rows > 1)
  static void add_groups(const uint8_t* weights, const Variant& variant, size_t ahead,
                         const uint8_t* x, size_t x_stride, int groups, float* tile);
};

constexpr bool kTakesOffsetOff = false;
constexpr bool kDotsHighCodes = false;

template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  return {vusdotq_s32(sum.v, a.v, b.v)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
