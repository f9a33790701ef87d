// Vectors of the compiler's own (kernels/attention_vector.inl says what each function does).
#pragma once

#include "kernels/vector_types.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

// Rounded once, as in every tier: by an instruction, or the C library.
inline Floats fused(Floats a, Floats b, Floats c) {
  for (int lane = 0; lane < kLanes; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  return c;
}
inline Doubles fused(Doubles a, Doubles b, Doubles c) {
  for (int lane = 0; lane < kWordLanes; ++lane) c[lane] = __builtin_fma(a[lane], b[lane], c[lane]);
  return c;
}
inline Floats larger(Floats x, Floats other) { return x > other ? x : other; }
inline uint32_t set_lanes(WordMask mask) {
  uint32_t lanes = 0;
  for (int lane = 0; lane < kWordLanes; ++lane) lanes |= (mask[lane] & 1) << lane;
  return lanes;
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
  Ints pairs;
  for (int lane = 0; lane < kLanes; ++lane)
    pairs[lane] = static_cast<int32_t>(static_cast<uint32_t>(from[2 * lane + 1]) << 16 |
                                       (static_cast<uint32_t>(from[2 * lane]) & 0xFFFFu));
  return pairs;
}
template <bool kHalf>
inline Ints read_bytes(const uint8_t* from) {
  Ints bytes;
  for (int lane = 0; lane < kLanes; ++lane) bytes[lane] = from[lane];
  return bytes;
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
