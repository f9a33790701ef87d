// The vector operations of attention, as wide as the tier's registers.
//
// Each tier defines in its own vectors.h and pairs.h, inside the namespace `attend`:
//   fused            a · b + c, rounded once
//   larger           the larger number; where x is NaN, the other
//   set_lanes        a bit for each lane of a mask of 64-bit lanes that is set
//   read_floats, read_words, read_bytes, read_codes, read_float8, read_code_halves
//                    a step of a sum from cells of a format. With kHalf, 8 lanes are read and the
//                    others are zero; the memory after them is not touched.
//   kDotsPairs       whether one instruction multiplies pairs of bf16 numbers
//   Bf16Pairs        two numbers for each lane: one vector of bf16 pairs if kDotsPairs, else `Two`
//   as_read          Bf16Pairs of words that hold two bf16 numbers each
//   store_weights    stores a vector of weights where the products of values read them
//   times            a product with Bf16Pairs, if kDotsPairs (as `times` below for `Two`)
#pragma once

#include <pairs.h>
#include <vectors.h>

#include <utility>

#include "kernels/vector_types.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

inline Ints lane_numbers() {
  Ints lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  return lanes;
}

// The lanes, each from `by` further on; after the last one comes the first one.
template <int by, int... lane>
inline Floats turned(Floats x, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(x, x, (lane + by) % kLanes...);
}

// Sixteen sums, of each block's tokens: however many lanes a tier has, the same numbers are added.
constexpr int kBlockVectors = kBlockTokens / kLanes;
struct Columns {
  Floats of[kBlockVectors];
};

// The sum of all lanes and columns, halves first: in every tier alike.
template <int half = kLanes / 2>
inline float sum_of(Floats x) {
  x += turned<half>(x, std::make_integer_sequence<int, kLanes>{});
  if constexpr (half > 1) return sum_of<half / 2>(x);
  else return x[0];
}
inline float sum_of(Columns columns) {
  for (int half = kBlockVectors / 2; half > 0; half /= 2)
    for (int v = 0; v < half; ++v) columns.of[v] += columns.of[v + half];
  return sum_of(columns.of[0]);
}

// The largest of all lanes.
template <int half = kLanes / 2>
inline float largest_of(Floats x) {
  const Floats other = turned<half>(x, std::make_integer_sequence<int, kLanes>{});
  x = select(other > x, other, x);
  if constexpr (half > 1) return largest_of<half / 2>(x);
  else return x[0];
}

// exp(x) for x ≤ 0, to about one unit in the last place, the same bits in every lane. Exactly 1 at
// 0; 0 below -87, where fp32's normal numbers end; NaN stays NaN.
inline Floats exponential(Floats x) {
  const Floats shift = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number
  const Floats shifted = fused(x, splat(1.44269504f), shift);
  const Floats whole = shifted - shift;
  // ln 2 in two parts, the first of few enough bits for its product to be exact.
  Floats r = fused(whole, splat(-0.693359375f), x);
  r = fused(whole, splat(2.12194440e-4f), r);
  Floats p = splat(1.3950601e-3f);  // (e^r - 1 - r) / r², fitted over half of ln 2 each way
  p = fused(p, r, splat(8.3689530e-3f));
  p = fused(p, r, splat(4.1666206e-2f));
  p = fused(p, r, splat(1.6666518e-1f));
  p = fused(p, r, splat(0.5f));
  p = fused(p * r, r, r) + splat(1.0f);
  const Ints exponent = (bits_of(shifted) - bits_of(shift) + 127) << 23;
  return select(x < splat(-87.0f), Floats{}, p * floats_of(exponent));
}

// 2^(x · factor) for x · factor ≤ 0, to a few units in the last place, the same bits in every lane.
// Exactly 1 at x = 0; 0 below 2^-125, where fp32's normal numbers end soon; NaN stays NaN.
inline Floats power_of_two(Floats x, Floats factor) {
  const Floats shift = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number
  const Floats shifted = fused(x, factor, shift);
  const Floats r = fused(x, factor, shift - shifted);
  Floats p = splat(1.3264727e-3f);  // (2^r - 1) / r, fitted over half of 1 each way
  p = fused(p, r, splat(9.6715126e-3f));
  p = fused(p, r, splat(5.5507337e-2f));
  p = fused(p, r, splat(2.4022242e-1f));
  p = fused(p, r, splat(6.9314698e-1f));
  p = fused(p, r, splat(1.0f));
  const Ints exponent = (bits_of(shifted) + 127) << 23;  // the other bits of `shift` leave
  return select(shifted < splat(12582912.0f - 125.0f), Floats{}, p * floats_of(exponent));
}

// tanh, with an absolute error of a few units in the last place of 1: enough for a soft cap.
inline Floats hyperbolic_tangent(Floats x) {
  const Ints sign = bits_of(x) & INT32_MIN;
  const Floats size = floats_of(bits_of(x) ^ sign);
  const Floats e = exponential(size * -2.0f);
  const Floats y = (splat(1.0f) - e) / (splat(1.0f) + e);
  return floats_of(bits_of(y) ^ sign);
}

inline uint32_t float_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Rounds a multiple of 8 numbers to bf16, to nearest even; NaN stays NaN.
inline void round_to_bf16(const float* from, int count, uint16_t* to) {
  typedef uint32_t Words __attribute__((vector_size(32)));
  typedef uint16_t Halves __attribute__((vector_size(16)));
  for (int i = 0; i < count; i += 8) {
    const Words bits = load<Words>(from + i);
    const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const Words quiet = (bits >> 16) | 0x40u;
    store(to + i, __builtin_convertvector((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded,
                                          Halves));
  }
}

// Of two vectors, the lanes whose number lacks the bit `half`, those of the other one beside them;
// and the lanes that have it.
template <int half, int... lane>
inline Ints without_bit(Ints one, Ints other, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(one, other, (lane & half ? kLanes + lane - half : lane)...);
}
template <int half, int... lane>
inline Ints with_bit(Ints one, Ints other, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(one, other, (lane & half ? kLanes + lane : lane + half)...);
}

// Of every two lanes, two pairs (a, b) (c, d) as (a, c) (b, d): pairs of two tokens become pairs of
// two dimensions, and the other way round. A lane holds both numbers of a pair, or each of two
// vectors one of them.
inline Two across(Two x) {
  constexpr std::make_integer_sequence<int, kLanes> lanes;
  const Ints even = bits_of(x.even), odd = bits_of(x.odd);
  return {floats_of(without_bit<1>(even, odd, lanes)), floats_of(with_bit<1>(even, odd, lanes))};
}
template <int... half>
inline Halves across(Halves x, std::integer_sequence<int, half...>) {
  return __builtin_shufflevector(
      x, x, (half % 4 == 1 ? half + 1 : half % 4 == 2 ? half - 1 : half)...);
}
template <typename Pairs>
inline Pairs across(Pairs x) {
  const Halves turned = across(load<Halves>(&x), std::make_integer_sequence<int, 2 * kLanes>{});
  return load<Pairs>(&turned);
}

// ---- cells of the cache, two inputs of a sum at a time ----

// How the cells of a format are read. A step's row has `width` pairs of numbers; `width` is 16
// tokens, or head_dim. kHalf reads only 8 lanes, and zeros for the others.
template <CacheFormat kFormat>
struct Cells;

template <>
struct Cells<CacheFormat::F32> {
  using Element = float;
  static constexpr int kPairElements = 2;  // of two numbers
  static constexpr int kLaneElements = 1;  // from a lane to the next
  static constexpr bool kPairs = false;
  template <bool kHalf>
  static Two read(const Element* from, int width) {
    return {read_floats<kHalf>(from), read_floats<kHalf>(from + width)};
  }
};

template <>
struct Cells<CacheFormat::BF16> {
  using Element = uint16_t;
  static constexpr int kPairElements = 2;
  static constexpr int kLaneElements = 2;
  static constexpr bool kPairs = kDotsPairs;
  template <bool kHalf>
  static Bf16Pairs read(const Element* from, int) {
    return as_read(read_words<kHalf>(from));
  }
};

template <>
struct Cells<CacheFormat::Int8> {
  using Element = int8_t;
  static constexpr int kPairElements = 2;
  static constexpr int kLaneElements = 2;
  static constexpr bool kPairs = kDotsPairs;
  template <bool kHalf>
  static Bf16Pairs read(const Element* from, int) {
    return read_codes<kHalf>(from);
  }
};

// Bytes are numbers of so many bits of mantissa, and an exponent of the others.
template <int kMantissa>
struct Float8Cells : Cells<CacheFormat::Int8> {
  template <bool kHalf>
  static Bf16Pairs read(const Element* from, int) {
    return read_float8<kHalf, kMantissa>(from);
  }
};
template <>
struct Cells<CacheFormat::E4M3> : Float8Cells<3> {};
template <>
struct Cells<CacheFormat::E5M2> : Float8Cells<2> {};

template <>
struct Cells<CacheFormat::Int4> {
  using Element = uint8_t;
  static constexpr int kPairElements = 1;
  static constexpr int kLaneElements = 1;
  static constexpr bool kPairs = kDotsPairs;
  template <bool kHalf>
  static Bf16Pairs read(const Element* from, int) {
    return read_code_halves<kHalf>(from);
  }
};

// The elements of an even number of numbers.
template <CacheFormat kFormat>
constexpr size_t elements(size_t numbers) {
  return numbers / 2 * Cells<kFormat>::kPairElements;
}

// The other factor of a step, the same for all lanes: two floats, or two bf16 in one word.
inline Floats times(Floats sum, Two cells, const uint32_t* words) {
  sum = fused(floats_of(splat_bits(words[0])), cells.even, sum);
  return fused(floats_of(splat_bits(words[1])), cells.odd, sum);
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
