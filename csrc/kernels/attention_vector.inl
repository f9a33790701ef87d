// The few vector operations that attention is made of, as wide as the tier's registers.
//
// Vectors are the compiler's own (GCC, clang), so that + - * and comparisons are plain; what only
// some processors have (fused multiply-add, the bf16 dot product) has a name here. They live in a
// namespace of their own, `attend`, and meet no other kernel file's.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/table.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;  // what every 64-bit processor has: SSE2, NEON
#endif
#if defined(__AVX512BF16__)
constexpr bool kDotsPairs = true;  // products of pairs of bf16 in one instruction
#else
constexpr bool kDotsPairs = false;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));

template <typename Vector, typename From>
inline Vector load(const From* from) {
  Vector x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
template <typename Vector, typename To>
inline void store(To* to, Vector x) {
  __builtin_memcpy(to, &x, sizeof x);
}

inline Floats splat(float value) { return value - Floats{}; }
inline Ints splat_bits(uint32_t bits) { return static_cast<int32_t>(bits) - Ints{}; }
inline Ints bits_of(Floats x) { return reinterpret_cast<Ints>(x); }
inline Floats floats_of(Ints x) { return reinterpret_cast<Floats>(x); }
inline Floats select(Ints where, Floats yes, Floats no) { return where ? yes : no; }

inline Ints lane_numbers() {
  Ints lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  return lanes;
}

// a · b + c, rounded once where the tier can.
inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// The larger; where x is NaN, the other.
inline Floats larger(Floats x, Floats other) {
#if defined(__AVX512F__)
  return _mm512_max_ps(x, other);
#else
  return x > other ? x : other;
#endif
}

// The sum and the largest of all lanes, halves first.
inline float sum_of(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}
inline float largest_of(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
  float most = lanes[0];
  for (float lane : lanes) most = lane > most ? lane : most;
  return most;
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

// tanh to a few units of fp32's last place *of one*: what it is for is a cap, which multiplies it.
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

// To bf16, to nearest even; NaN stays NaN.
inline uint32_t bf16_bits(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : rounded;
}

// ---- cells of the cache, two inputs of a sum at a time ----

// What one step of a sum multiplies: for each lane two numbers, of two dimensions (keys) or two
// tokens (values); as two vectors, or as one of bf16 pairs where that can be multiplied at once.
struct Two {
  Floats even, odd;
};

// How a format's cells are read. `width` is what a step's row has of lanes: 16 tokens, or head_dim.
// Step s of rows of 2 · width elements; kHalf reads 8 lanes only and zeros.
template <CacheFormat kFormat>
struct Cells;

#if defined(__AVX512F__)
inline Floats to_floats(const int8_t* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return __builtin_convertvector((Ints)_mm512_maskz_cvtepi8_epi32(0xFFFF, bytes), Floats);
}

inline __m512i half_or_all(const void* from, bool half) {
  return half ? _mm512_maskz_loadu_epi32(0xFF, from) : _mm512_loadu_si512(from);
}
#endif

template <>
struct Cells<CacheFormat::F32> {
  using Element = float;
  static constexpr int kLaneElements = 1;  // from a lane to the next
  static constexpr bool kPairs = false;
  template <bool kHalf>
  static Two read(const Element* from, int width) {
#if defined(__AVX512F__)
    return {_mm512_castsi512_ps(half_or_all(from, kHalf)),
            _mm512_castsi512_ps(half_or_all(from + width, kHalf))};
#else
    return {load<Floats>(from), load<Floats>(from + width)};
#endif
  }
};

inline Two widen(Ints pairs) {
  return {floats_of(pairs << 16), floats_of(pairs & static_cast<int32_t>(0xFFFF0000u))};
}

#if defined(__AVX512BF16__)
using Bf16Pairs = __m512i;
inline Bf16Pairs as_read(Ints pairs) { return reinterpret_cast<__m512i>(pairs); }
#else
using Bf16Pairs = Two;
inline Bf16Pairs as_read(Ints pairs) { return widen(pairs); }
#endif

template <>
struct Cells<CacheFormat::BF16> {
  using Element = uint16_t;
  static constexpr int kLaneElements = 2;
  static constexpr bool kPairs = kDotsPairs;
  template <bool kHalf>
  static Bf16Pairs read(const Element* from, int) {
#if defined(__AVX512F__)
    return as_read(reinterpret_cast<Ints>(half_or_all(from, kHalf)));
#else
    return as_read(load<Ints>(from));
#endif
  }
};

template <>
struct Cells<CacheFormat::Int8> {
  using Element = int8_t;
  static constexpr int kLaneElements = 2;
  static constexpr bool kPairs = kDotsPairs;
  template <bool kHalf>
  static Bf16Pairs read(const Element* from, int) {
#if defined(__AVX512BF16__)
    // A code has 7 bits, a bf16 8: nothing is rounded.
    const Floats low = to_floats(from);
    if (kHalf) return (__m512i)_mm512_cvtne2ps_pbh(Floats{}, low);
    const Floats high = to_floats(from + kLanes);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
#if defined(__AVX512F__)
    const __m256i codes =
        kHalf ? _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))
              : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const Ints pairs = reinterpret_cast<Ints>(_mm512_cvtepi8_epi16(codes));
#elif defined(__AVX2__)
    const Ints pairs = reinterpret_cast<Ints>(
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    Ints pairs;
    for (int lane = 0; lane < kLanes; ++lane)
      pairs[lane] = static_cast<int32_t>(static_cast<uint32_t>(from[2 * lane + 1]) << 16 |
                                         (static_cast<uint32_t>(from[2 * lane]) & 0xFFFFu));
#endif
    return {__builtin_convertvector(pairs << 16 >> 16, Floats),
            __builtin_convertvector(pairs >> 16, Floats)};
#endif
  }
};

// The other factor of a step, the same for all lanes: two floats, or two bf16 in one word.
inline Floats times(Floats sum, Two cells, const uint32_t* words) {
  sum = fused(floats_of(splat_bits(words[0])), cells.even, sum);
  return fused(floats_of(splat_bits(words[1])), cells.odd, sum);
}
#if defined(__AVX512BF16__)
inline Floats times(Floats sum, __m512i cells, const uint32_t* words) {
  const __m512i both = _mm512_set1_epi32(static_cast<int>(words[0]));
  return _mm512_dpbf16_ps(sum, (__m512bh)both, (__m512bh)cells);
}
#endif

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
