// Floats in NEON registers: 4 numbers (kernels/simd.h says what each function does).
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kLanes = 4;
struct Floats { float32x4_t v; };
struct Mask { uint32x4_t m; };

inline Floats load(const float* p) { return {vld1q_f32(p)}; }
inline void store(float* p, Floats a) { vst1q_f32(p, a.v); }
// NEON has no loads and stores with masks: single numbers, at the ends of rows only.
inline Floats load_first(const float* p, int n) {
  if (n == kLanes) return load(p);
  float lanes[kLanes] = {};
  for (int lane = 0; lane < n; ++lane) lanes[lane] = p[lane];
  return load(lanes);
}
inline void store_first(float* p, Floats a, int n) {
  if (n == kLanes) return store(p, a);
  float lanes[kLanes];
  store(lanes, a);
  for (int lane = 0; lane < n; ++lane) p[lane] = lanes[lane];
}
inline Floats load_half(const uint16_t* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))};
}
inline Floats splat(float a) { return {vdupq_n_f32(a)}; }
inline Floats operator+(Floats a, Floats b) { return {vaddq_f32(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {vsubq_f32(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {vmulq_f32(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {vdivq_f32(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline Floats square_root(Floats a) { return {vsqrtq_f32(a.v)}; }
// By comparison: FMAX and FMIN return NaN if either argument is one.
inline Floats max(Floats a, Floats b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
inline Floats round_even(Floats a) { return {vrndnq_f32(a.v)}; }
inline Floats magnitude(Floats a) { return {vabsq_f32(a.v)}; }
inline Floats negate(Floats a) { return {vnegq_f32(a.v)}; }
inline Floats with_sign_of(Floats a, Floats sign) {
  return {vbslq_f32(vdupq_n_u32(0x80000000u), sign.v, a.v)};
}
inline Mask less(Floats a, Floats b) { return {vcltq_f32(a.v, b.v)}; }
inline Floats select(Mask mask, Floats yes, Floats no) { return {vbslq_f32(mask.m, yes.v, no.v)}; }
inline Floats power_of_two(Floats n) {
  const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(n.v), vdupq_n_s32(127));
  return {vreinterpretq_f32_s32(vshlq_n_s32(biased, 23))};
}

template <int Which>
inline Floats load_bf16(const uint8_t* p) {
  const uint32x4_t both = vreinterpretq_u32_u8(vld1q_u8(p));
  return {vreinterpretq_f32_u32(Which ? vandq_u32(both, vdupq_n_u32(0xFFFF0000u))
                                      : vshlq_n_u32(both, 16))};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
