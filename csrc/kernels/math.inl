// exp, tanh and GELU of Floats, accurate to about 2 units in the last place, and other activations
// made of them. Branch-free and lane by lane: a value's bits do not depend on its position, and
// since only IEEE operations are used they are the same in every tier.
//
// The coefficients are minimax fits to the functions named beside them, made in float64.
#pragma once

#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// exp(x) = 2^n · exp(r), n whole, |r| ≤ ln 2 / 2. Overflows to infinity and underflows to zero
// through the denormals, as it should; NaN stays NaN.
inline Floats exponential(Floats x) {
  // Below -104 the result is zero, above 89 infinity; between them 2^n has two factors.
  x = min(splat(89.0f), max(splat(-104.0f), x));
  const Floats n = round_even(x * splat(1.44269504f));
  // ln 2 in two pieces: the first has so few bits that n · piece is exact.
  Floats r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  // (exp(r) - 1 - r) / r², relative error of exp below 2^-28.
  Floats p = splat(1.395060099e-3f);
  p = fma(p, r, splat(8.368953131e-3f));
  p = fma(p, r, splat(4.166620597e-2f));
  p = fma(p, r, splat(1.666651815e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p * r, r, r) + splat(1.0f);
  // 2^n with n in [-150, 128] would leave fp32's exponents: half of n first, which is exact.
  const Floats half = round_even(n * splat(0.5f));
  return p * power_of_two(half) * power_of_two(n - half);
}

inline Floats hyperbolic_tangent(Floats x) {
  const Floats a = magnitude(x);
  const Floats square = x * x;
  // Near zero (tanh(x) - x) / x³ in x², as 1 - 2 / … would cancel.
  Floats p = splat(2.147539752e-3f);
  p = fma(p, square, splat(-8.182677440e-3f));
  p = fma(p, square, splat(2.170296945e-2f));
  p = fma(p, square, splat(-5.394720286e-2f));
  p = fma(p, square, splat(1.333321035e-1f));
  p = fma(p, square, splat(-3.333333135e-1f));
  const Floats near = fma(p * square, x, x);
  const Floats far = splat(1.0f) - splat(2.0f) / (exponential(a + a) + splat(1.0f));
  return select(less(a, splat(0.625f)), near, with_sign_of(far, x));
}

// x · Φ(x), exact GELU, as max(x, 0) - ½ |x| · erfc(|x| / √2): nothing cancels for negative x.
inline Floats gelu(Floats x) {
  const Floats t = min(splat(8.0f), magnitude(x));  // from where on the second part vanishes
  // log2(erfc(t / √2)) / t; the error is weighted by the second part.
  Floats p = splat(-2.8349134e-6f);
  p = fma(p, t, splat(3.9377697e-5f));
  p = fma(p, t, splat(-1.8618027e-4f));
  p = fma(p, t, splat(-1.3693632e-4f));
  p = fma(p, t, splat(7.0634200e-3f));
  p = fma(p, t, splat(-5.2496180e-2f));
  p = fma(p, t, splat(-4.5920819e-1f));
  p = fma(p, t, splat(-1.1511052f));
  p = p * t;
  const Floats n = round_even(p);
  const Floats r = p - n;
  Floats y = splat(1.3264727e-3f);  // (2^r - 1) / r
  y = fma(y, r, splat(9.6715126e-3f));
  y = fma(y, r, splat(5.5507337e-2f));
  y = fma(y, r, splat(2.4022242e-1f));
  y = fma(y, r, splat(6.9314698e-1f));
  y = fma(y, r, splat(1.0f)) * power_of_two(n);
  return fma(t * splat(-0.5f), y, max(splat(0.0f), x));
}

inline Floats logistic(Floats x) {
  return splat(1.0f) / (splat(1.0f) + exponential(negate(x)));
}

// An activation of one argument. ClampedSwiglu has two: see `gated_product`.
inline Floats activated(Activation activation, Floats x) {
  switch (activation) {
    case Activation::Silu:
      return x * logistic(x);
    case Activation::GeluErf:
      return gelu(x);
    case Activation::GeluTanh: {  // √(2/π) · (x + 0.044715 x³)
      const Floats inner = splat(0.79788456f) * fma(splat(0.044715f) * x * x, x, x);
      return x * splat(0.5f) * (splat(1.0f) + hyperbolic_tangent(inner));
    }
    case Activation::Relu:
      return max(splat(0.0f), x);
    case Activation::Relu2: {
      const Floats positive = max(splat(0.0f), x);
      return positive * positive;
    }
    case Activation::Sigmoid:
      return logistic(x);
    case Activation::ClampedSwiglu:
    case Activation::None:
      break;
  }
  return x;
}

// activation(gate) · up.
inline Floats gated_product(Activation activation, Floats gate, Floats up) {
  if (activation != Activation::ClampedSwiglu) return activated(activation, gate) * up;
  // gpt-oss: both are clamped at 7, the sigmoid is taken of 1.702 · gate.
  gate = min(splat(7.0f), gate);
  up = min(splat(7.0f), max(splat(-7.0f), up));
  return (up + splat(1.0f)) * gate * logistic(gate * splat(1.702f));
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
