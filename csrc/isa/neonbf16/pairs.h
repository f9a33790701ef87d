// Pairs of bf16 numbers in one register, which an instruction multiplies at once.
#pragma once

#include <arm_neon.h>
#include <vectors.h>

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

constexpr bool kDotsPairs = true;
struct Bf16Pairs { bfloat16x8_t v; };

inline Bf16Pairs as_read(Ints pairs) { return {vreinterpretq_bf16_s32(pairs)}; }

// A code has 7 bits, a bf16 8: nothing is rounded.
template <bool kHalf>
inline Bf16Pairs read_codes(const int8_t* from) {
  const int16x8_t codes = vmovl_s8(vld1_s8(from));
  const float32x4_t first = vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes)));
  const float32x4_t second = vcvtq_f32_s32(vmovl_s16(vget_high_s16(codes)));
  return {vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(first), second)};
}

template <bool kPairs>
inline void store_weights(float* row, int at, Floats weights) {
  if constexpr (!kPairs) {
    store(row + at, weights);
  } else {
    store(reinterpret_cast<uint16_t*>(row) + at, vcvt_bf16_f32(weights));
  }
}

inline Floats times(Floats sum, Bf16Pairs cells, const uint32_t* words) {
  return vbfdotq_f32(sum, cells.v, vreinterpretq_bf16_u32(vdupq_n_u32(words[0])));
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
