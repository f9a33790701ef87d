// Floats in plain C++: 1 numbers (kernels/simd.h says what each function does).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/numbers.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kLanes = 1;
struct Floats { float v; };
struct Mask { bool m; };

inline Floats load(const float* p) { return {*p}; }
inline void store(float* p, Floats a) { *p = a.v; }
inline Floats load_first(const float* p, int n) { return {n > 0 ? *p : 0.0f}; }
inline void store_first(float* p, Floats a, int n) {
  if (n > 0) *p = a.v;
}
inline Floats load_half(const uint16_t* p) { return {half_to_float(*p)}; }
inline Floats splat(float a) { return {a}; }
inline Floats operator+(Floats a, Floats b) { return {a.v + b.v}; }
inline Floats operator-(Floats a, Floats b) { return {a.v - b.v}; }
inline Floats operator*(Floats a, Floats b) { return {a.v * b.v}; }
inline Floats operator/(Floats a, Floats b) { return {a.v / b.v}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
inline Floats square_root(Floats a) { return {__builtin_sqrtf(a.v)}; }
inline Floats max(Floats a, Floats b) { return {a.v > b.v ? a.v : b.v}; }
inline Floats min(Floats a, Floats b) { return {a.v < b.v ? a.v : b.v}; }
inline Floats round_even(Floats a) { return {__builtin_rintf(a.v)}; }
inline Floats magnitude(Floats a) { return {__builtin_fabsf(a.v)}; }
inline Floats negate(Floats a) { return {-a.v}; }
inline Floats with_sign_of(Floats a, Floats sign) { return {__builtin_copysignf(a.v, sign.v)}; }
inline Mask less(Floats a, Floats b) { return {a.v < b.v}; }
inline Floats select(Mask mask, Floats yes, Floats no) { return mask.m ? yes : no; }
inline Floats power_of_two(Floats n) {
  return {bits_to_float(static_cast<uint32_t>(static_cast<int32_t>(n.v) + 127) << 23)};
}

template <int Which>
inline Floats load_bf16(const uint8_t* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p + Which * 2, sizeof bits);
  return {bf16_to_float(bits)};
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
