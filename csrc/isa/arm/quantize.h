// Quantised activations in NEON registers (kernels/quantize.inl).
#pragma once

#include <arm_neon.h>

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline uint32_t largest_magnitude(const float* x) {
  uint32x4_t most = vdupq_n_u32(0);
  for (int i = 0; i < kGroup; i += kLanes) {
    most = vmaxq_u32(most, vreinterpretq_u32_f32(magnitude(load(x + i)).v));
  }
  return vmaxvq_u32(most);
}

inline int16x8_t to_words(Floats a, Floats b) {
  return vcombine_s16(vmovn_s32(vcvtq_s32_f32(a.v)), vmovn_s32(vcvtq_s32_f32(b.v)));
}

// Stores 16 codes; returns their sum.
inline int32_t store_half(const Floats* codes, uint8_t* out) {
  const int8x16_t bytes = vcombine_s8(vmovn_s16(to_words(codes[0], codes[1])),
                                      vmovn_s16(to_words(codes[2], codes[3])));
  vst1q_u8(out, vreinterpretq_u8_s8(bytes));
  return vaddlvq_s8(bytes);
}

inline Halves store_codes(const Floats (&codes)[kGroup / kLanes], uint8_t* out) {
  return {store_half(codes, out), store_half(codes + 4, out + 16)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
