// exp, tanh and erf of Floats, accurate to about 2 units in the last place, and the activations
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

inline Floats error_function(Floats x) {
  const Floats a = magnitude(x);
  const Floats square = x * x;
  // Below 1: (erf(x) / x - 1) in x².
  Floats p = splat(7.889122935e-5f);
  p = fma(p, square, splat(-8.020842215e-4f));
  p = fma(p, square, splat(5.189535674e-3f));
  p = fma(p, square, splat(-2.685444430e-2f));
  p = fma(p, square, splat(1.128360033e-1f));
  p = fma(p, square, splat(-3.761262596e-1f));
  p = fma(p, square, splat(1.283791661e-1f));
  const Floats near = fma(p, x, x);
  // Above: ln(1 - erf(x)), fitted up to 3.95, above which erf rounds to 1.
  const Floats t = min(splat(3.95f), a);
  Floats q = splat(-2.168675746e-5f);
  q = fma(q, t, splat(4.413352290e-4f));
  q = fma(q, t, splat(-4.204555880e-3f));
  q = fma(q, t, splat(2.520824037e-2f));
  q = fma(q, t, splat(-1.084185466e-1f));
  q = fma(q, t, splat(-6.332198977e-1f));
  q = fma(q, t, splat(-1.129578352f));
  q = fma(q, t, splat(1.880367490e-4f));
  const Floats far = splat(1.0f) - exponential(q);
  return select(less(a, splat(1.0f)), near, with_sign_of(far, x));
}

inline Floats logistic(Floats x) {
  return splat(1.0f) / (splat(1.0f) + exponential(negate(x)));
}

// An activation of one argument. ClampedSwiglu has two: see `gated_product`.
inline Floats activated(Activation activation, Floats x) {
  switch (activation) {
    case Activation::Silu:
      return x * logistic(x);
    case Activation::GeluErf:  // √½
      return x * splat(0.5f) * (splat(1.0f) + error_function(x * splat(0.70710678f)));
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
