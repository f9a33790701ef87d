// Codes of weights in NEON registers (kernels/codes.inl says what each function does). The tier's
// dot.h has `Codes` and their integer products.
#pragma once

#include <arm_neon.h>
#include <dot.h>

#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline Codes load_codes(const uint8_t* p) { return {vld1q_u8(p)}; }
inline Codes masked(Codes a, int mask) {
  return {vandq_u8(a.v, vdupq_n_u8(static_cast<uint8_t>(mask)))};
}
template <int left>
OCTAVO_INLINE Codes shifted(Codes a) {
  const uint32x4_t words = vreinterpretq_u32_u8(a.v);
  if constexpr (left >= 0) return {vreinterpretq_u8_u32(vshlq_n_u32(words, left))};
  else return {vreinterpretq_u8_u32(vshrq_n_u32(words, -left))};
}
inline Codes with_bits(Codes a, Codes b, int mask) { return {vorrq_u8(a.v, masked(b, mask).v)}; }
inline Codes look_up(const int8_t* table, Codes a) {
  return {vreinterpretq_u8_s8(vqtbl1q_s8(vld1q_s8(table), a.v))};
}
inline void store_codes(uint8_t* p, Codes a) { vst1q_u8(p, a.v); }
template <int half>
OCTAVO_INLINE Codes interleaved(Codes a, Codes b) {
  if constexpr (half) return {vzip2q_u8(a.v, b.v)};
  else return {vzip1q_u8(a.v, b.v)};
}
inline Codes chosen(Codes test, Codes a, Codes b) {
  return {vbslq_u8(vceqzq_u8(test.v), a.v, b.v)};
}
inline Four splat_four(const uint8_t* p) {
  return {vreinterpretq_s8_u32(vdupq_n_u32(read_four(p)))};
}
inline Integers splat_integer(const uint8_t* p) {
  return {vreinterpretq_s32_u32(vdupq_n_u32(read_four(p)))};
}
inline Integers no_integers() { return {vdupq_n_s32(0)}; }
inline Floats to_floats(Integers a) { return {vcvtq_f32_s32(a.v)}; }
inline Floats as_floats(Integers a) { return {vreinterpretq_f32_s32(a.v)}; }
inline uint8x8_t four_bytes(const uint8_t* p) {
  return vreinterpret_u8_u32(vdup_n_u32(read_four(p)));
}
inline Integers widened(const uint8_t* p) {
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(p)))))};
}
inline Integers widened_signed(const uint8_t* p) {
  return {vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(p)))))};
}
inline Integers operator&(Integers a, int mask) { return {vandq_s32(a.v, vdupq_n_s32(mask))}; }
inline Integers with_bits(Integers a, Integers b, int mask) {
  return {vorrq_s32(a.v, (b & mask).v)};
}
inline Integers operator<<(Integers a, int left) { return {vshlq_s32(a.v, vdupq_n_s32(left))}; }
inline Integers operator>>(Integers a, int right) { return {vshlq_s32(a.v, vdupq_n_s32(-right))}; }
inline Floats powers_less_128(Integers e) {
  const int32x4_t one = vdupq_n_s32(1), least = vdupq_n_s32(kPowerOfMinus128);
  const int32x4_t denormal = vshlq_s32(least, vminq_s32(e.v, one));
  const int32x4_t normal = vshlq_n_s32(vsubq_s32(e.v, one), 23);
  return {vreinterpretq_f32_s32(vmaxq_s32(normal, denormal))};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
