// Sixteen floats at a time, and exp, tanh, erf of them: alike to the bit in every tier.
//
// GCC and clang turn these vectors into whatever the tier's flags allow. There is no fused
// multiply-add in here (and the build forbids the compiler to make one), so all tiers agree.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Floats splat(float value) { return value - Floats{}; }

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

// The first `count` lanes; the others are `rest`.
inline Floats load_some(const float* from, int count, float rest = 0.0f) {
  Floats x = splat(rest);
  std::memcpy(&x, from, count * sizeof(float));
  return x;
}

inline void store_some(float* to, Floats x, int count) {
  std::memcpy(to, &x, count * sizeof(float));
}

inline Floats select(Ints where, Floats yes, Floats no) {
  return reinterpret_cast<Floats>((where & reinterpret_cast<Ints>(yes)) |
                                  (~where & reinterpret_cast<Ints>(no)));
}

inline Floats absolute(Floats x) {
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & 0x7fffffff);
}

inline Floats with_sign_of(Floats x, Floats sign) {
  return reinterpret_cast<Floats>((reinterpret_cast<Ints>(x) & 0x7fffffff) |
                                  (reinterpret_cast<Ints>(sign) & INT32_MIN));
}

// The sum of all lanes, halves first: one order everywhere.
inline float sum(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

inline float largest(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
  float most = lanes[0];
  for (float lane : lanes) most = lane > most ? lane : most;
  return most;
}

// e^x to about one unit in the last place; NaN stays NaN, far below is 0, far above infinity.
inline Floats exponential(Floats x) {
  const Floats low = splat(-104.0f), high = splat(89.0f);  // beyond, the result is 0 or infinity
  x = select(x < low, low, select(x > high, high, x));
  const Floats shift = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number
  const Floats whole = (x * 1.44269504f + shift) - shift;
  // ln 2 in two parts, the first of few enough bits for its product to be exact
  const Floats r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  Floats p = splat(0.0013951715f);  // (e^r - 1 - r) / r², fitted over half of ln 2 each way
  p = p * r + 0.0083695985f;
  p = p * r + 0.0416661873f;
  p = p * r + 0.166665122f;
  p = p * r + 0.5f;
  const Floats y = p * (r * r) + r + 1.0f;
  // 2^whole in two factors, so that neither is out of range where the product is not
  const Ints power = __builtin_convertvector(select(whole == whole, whole, Floats{}), Ints);
  const Ints half = power >> 1;
  return y * reinterpret_cast<Floats>((half + 127) << 23) *
         reinterpret_cast<Floats>((power - half + 127) << 23);
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

inline Floats hyperbolic_tangent(Floats x) {
  const Floats size = absolute(x), s = x * x;
  Floats p = splat(0.00212273980f);  // (tanh(x) / x - 1) / x², fitted for |x| < 0.63
  p = p * s + -0.00815627351f;
  p = p * s + 0.0216926038f;
  p = p * s + -0.0539453775f;
  p = p * s + 0.133331954f;
  p = p * s + -0.333333313f;
  const Floats small = x + x * (s * p);
  const Floats large = with_sign_of(1.0f - 2.0f / (exponential(size + size) + 1.0f), x);
  return select(size < 0.625f, small, select(x == x, large, x));
}

inline Floats error_function(Floats x) {
  const Floats size = absolute(x), s = x * x;
  Floats p = splat(7.88911275e-05f);  // erf(x) / x - 1, fitted for |x| < 1
  p = p * s + -0.000802083930f;
  p = p * s + 0.00518953521f;
  p = p * s + -0.0268544443f;
  p = p * s + 0.112836003f;
  p = p * s + -0.376126260f;
  p = p * s + 0.128379166f;
  const Floats small = x + x * p;
  const Floats t = select(size > 4.0f, splat(4.0f), size);  // from there on it is 1
  Floats q = splat(-4.42690225e-06f);  // log(1 - erf(t)) / t, fitted for t from 0.95 to 4
  q = q * t + 3.93005466e-05f;
  q = q * t + 8.18784538e-05f;
  q = q * t + -0.00302026235f;
  q = q * t + 0.0228215549f;
  q = q * t + -0.105404176f;
  q = q * t + -0.635551512f;
  q = q * t + -1.12856793f;
  const Floats large = with_sign_of(1.0f - exponential(q * t), x);
  return select(size < 1.0f, small, select(x == x, large, x));
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
