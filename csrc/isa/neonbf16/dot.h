// Integer products by USDOT: codes are unsigned, activations signed.
#pragma once

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr bool kTakesOffsetOff = false;

template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  return {vusdotq_s32(sum.v, a.v, b.v)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
