// Integer products by SDOT, whose factors are both signed.
#pragma once

#include <integers.h>

namespace octavo {
namespace OCTAVO_TIER {
namespace {

struct Codes { uint8x16_t v; };

// A large code loses its offset of 128, which makes it signed; a small one is below 128.
constexpr bool kTakesOffsetOff = true;
constexpr bool kDotsHighCodes = false;

template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  const uint8x16_t code = small ? a.v : veorq_u8(a.v, vdupq_n_u8(128));
  return {vdotq_s32(sum.v, vreinterpretq_s8_u8(code), b.v)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
