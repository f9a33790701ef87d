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

template <int kMantissa>
inline float32x4_t float8_floats(int32x4_t codes) {
  const float32x4_t unit = vdupq_n_f32(kMantissa == 3 ? 0x1p120f : 0x1p112f);
  const int32x4_t sizes = vshlq_n_s32(vandq_s32(codes, vdupq_n_s32(0x7F)), 23 - kMantissa);
  const float32x4_t magnitudes = vmulq_f32(vreinterpretq_f32_s32(sizes), unit);
  return vbslq_f32(vdupq_n_u32(0x80000000u), vreinterpretq_f32_s32(codes), magnitudes);
}

// A code has at most 4 bits of mantissa, the first one included: nothing is rounded.
template <bool kHalf, int kMantissa>
inline Bf16Pairs read_float8(const int8_t* from) {
  const int16x8_t codes = vmovl_s8(vld1_s8(from));
  const float32x4_t first = float8_floats<kMantissa>(vmovl_s16(vget_low_s16(codes)));
  const float32x4_t second = float8_floats<kMantissa>(vmovl_s16(vget_high_s16(codes)));
  return {vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(first), second)};
}

template <bool kHalf>
inline Bf16Pairs read_code_halves(const uint8_t* from) {
  const int32x4_t bytes = reinterpret_cast<int32x4_t>(read_bytes<kHalf>(from));
  const float32x4_t low = vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(bytes, 28), 28));
  const float32x4_t high = vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(bytes, 24), 28));
  return {vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(vzip1q_f32(low, high)), vzip2q_f32(low, high))};
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
