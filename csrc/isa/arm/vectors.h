// Vectors in NEON registers (kernels/attention_vector.inl says what each function does).
#pragma once

#include <arm_neon.h>

#include "kernels/vector_types.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline Doubles fused(Doubles a, Doubles b, Doubles c) { return vfmaq_f64(c, a, b); }
inline Floats larger(Floats x, Floats other) { return x > other ? x : other; }
inline uint32_t set_lanes(WordMask mask) {
  return static_cast<uint32_t>((mask[0] & 1) | (mask[1] & 2));
}

template <bool kHalf>
inline Floats read_floats(const float* from) {
  return load<Floats>(from);
}
template <bool kHalf>
inline Ints read_words(const uint16_t* from) {
  return load<Ints>(from);
}
template <bool kHalf>
inline Ints read_code_pairs(const int8_t* from) {
  return reinterpret_cast<Ints>(vmovl_s8(vld1_s8(from)));
}
template <bool kHalf>
inline Ints read_bytes(const uint8_t* from) {
  uint32_t bytes;
  __builtin_memcpy(&bytes, from, sizeof bytes);
  const uint16x8_t halves = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)));
  return reinterpret_cast<Ints>(vmovl_u16(vget_low_u16(halves)));
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
