// Codes of weights in registers: four inputs of kLanes outputs at a time, how each format's bits
// become bytes (kernels/group_layout.h), and their integer products with activations.
#pragma once

#include "kernels/group_layout.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

#define OCTAVO_INLINE inline __attribute__((always_inline))

inline uint32_t read_four(const uint8_t* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return four;
}

inline float read_float(const uint8_t* p) { return bits_to_float(read_four(p)); }

// Codes: four bytes for each lane, unsigned. Four: four signed bytes, the same for every lane.
// Integers: an int32 for each lane. `dot` adds to a lane the products of its four bytes; `small`
// says that codes are below 64. `widened`: a byte for each lane; those that are shifted to the right
// are not negative. `powers_less_128`: 2^(e - 128) for e from 0 to 255, the two least of which are
// denormal.
constexpr int kPowerOfMinus128 = 1 << 21;  // the bits of that float

inline float power_less_128(int e) {
  const int bits = e >= 2 ? (e - 1) << 23 : kPowerOfMinus128 << e;
  return bits_to_float(static_cast<uint32_t>(bits));
}

#if defined(__AVX512VNNI__)

struct Codes { __m512i v; };
struct Four { __m512i v; };
struct Integers { __m512i v; };
constexpr bool kTakesOffsetOff = false;  // `dot` of codes that are not small

inline Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Codes masked(Codes a, int mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(mask))}; }
template <int left>
OCTAVO_INLINE Codes shifted(Codes a) {  // bits cross bytes: mask what is wanted
  if constexpr (left >= 0) return {_mm512_slli_epi32(a.v, left)};
  else return {_mm512_srli_epi32(a.v, -left)};
}
// a, and those bits of b that are in the mask.
inline Codes with_bits(Codes a, Codes b, int mask) {
  return {_mm512_ternarylogic_epi32(a.v, b.v, _mm512_set1_epi8(mask), 0xF8)};
}
inline Codes look_up(const int8_t* table, Codes a) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), a.v)};
}
inline Four splat_four(const uint8_t* p) { return {_mm512_set1_epi32(read_four(p))}; }
inline Integers splat_integer(const uint8_t* p) { return {_mm512_set1_epi32(read_four(p))}; }
inline Integers no_integers() { return {_mm512_setzero_si512()}; }
template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  return {_mm512_dpbusd_epi32(sum.v, a.v, b.v)};
}
inline Floats to_floats(Integers a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Integers widened(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Integers widened_signed(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Integers operator&(Integers a, int mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(mask))};
}
inline Integers operator|(Integers a, Integers b) { return {_mm512_or_si512(a.v, b.v)}; }
inline Integers operator<<(Integers a, int left) {
  return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(left))};
}
inline Integers operator>>(Integers a, int right) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(right))};
}
inline Floats powers_less_128(Integers e) {
  const __m512i one = _mm512_set1_epi32(1), least = _mm512_set1_epi32(kPowerOfMinus128);
  const __m512i denormal = _mm512_sllv_epi32(least, _mm512_min_epi32(e.v, one));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e.v, one), 23);
  return {_mm512_castsi512_ps(_mm512_max_epi32(normal, denormal))};
}

#elif defined(__AVX2__)

struct Codes { __m256i v; };
struct Four { __m256i v; };
struct Integers { __m256i v; };
constexpr bool kTakesOffsetOff = true;

inline Codes load_codes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline Codes masked(Codes a, int mask) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(mask))}; }
template <int left>
OCTAVO_INLINE Codes shifted(Codes a) {
  if constexpr (left >= 0) return {_mm256_slli_epi32(a.v, left)};
  else return {_mm256_srli_epi32(a.v, -left)};
}
inline Codes with_bits(Codes a, Codes b, int mask) {
  return {_mm256_or_si256(a.v, masked(b, mask).v)};
}
inline Codes look_up(const int8_t* table, Codes a) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), a.v)};
}
inline Four splat_four(const uint8_t* p) { return {_mm256_set1_epi32(read_four(p))}; }
inline Integers splat_integer(const uint8_t* p) { return {_mm256_set1_epi32(read_four(p))}; }
inline Integers no_integers() { return {_mm256_setzero_si256()}; }
// Products of bytes are added up by two in 16 bits, saturating. Below 64 · 127 · 2 they cannot; a
// large code therefore loses its offset of 128 first, and gives its sign to the other factor (never
// -128), so that at most 128 · 127 · 2 remains.
template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i pairs;
  if constexpr (small) {
    pairs = _mm256_maddubs_epi16(a.v, b.v);
  } else {
    const __m256i value = _mm256_xor_si256(a.v, _mm256_set1_epi8(-128));
    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(b.v, value));
  }
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, ones))};
}
inline Floats to_floats(Integers a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline Integers widened(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
inline Integers widened_signed(const uint8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
inline Integers operator&(Integers a, int mask) {
  return {_mm256_and_si256(a.v, _mm256_set1_epi32(mask))};
}
inline Integers operator|(Integers a, Integers b) { return {_mm256_or_si256(a.v, b.v)}; }
inline Integers operator<<(Integers a, int left) {
  return {_mm256_sll_epi32(a.v, _mm_cvtsi32_si128(left))};
}
inline Integers operator>>(Integers a, int right) {
  return {_mm256_srl_epi32(a.v, _mm_cvtsi32_si128(right))};
}
inline Floats powers_less_128(Integers e) {
  const __m256i one = _mm256_set1_epi32(1), least = _mm256_set1_epi32(kPowerOfMinus128);
  const __m256i denormal = _mm256_sllv_epi32(least, _mm256_min_epi32(e.v, one));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e.v, one), 23);
  return {_mm256_castsi256_ps(_mm256_max_epi32(normal, denormal))};
}

#else

struct Codes { uint32_t v; };
struct Four { uint32_t v; };
struct Integers { int32_t v; };
constexpr bool kTakesOffsetOff = false;

inline Codes load_codes(const uint8_t* p) { return {read_four(p)}; }
inline Codes masked(Codes a, int mask) {
  return {a.v & static_cast<uint32_t>(mask) * 0x01010101u};
}
template <int left>
OCTAVO_INLINE Codes shifted(Codes a) {
  if constexpr (left >= 0) return {a.v << left};
  else return {a.v >> -left};
}
inline Codes with_bits(Codes a, Codes b, int mask) { return {a.v | masked(b, mask).v}; }
inline Codes look_up(const int8_t* table, Codes a) {
  uint32_t found = 0;
  for (int i = 0; i < 32; i += 8) {
    found |= static_cast<uint32_t>(static_cast<uint8_t>(table[a.v >> i & 15])) << i;
  }
  return {found};
}
inline Four splat_four(const uint8_t* p) { return {read_four(p)}; }
inline Integers splat_integer(const uint8_t* p) { return {static_cast<int32_t>(read_four(p))}; }
inline Integers no_integers() { return {0}; }
template <bool small>
OCTAVO_INLINE Integers dot(Integers sum, Codes a, Four b) {
  for (int i = 0; i < 32; i += 8) {
    sum.v += static_cast<uint8_t>(a.v >> i) * static_cast<int8_t>(b.v >> i);
  }
  return sum;
}
inline Floats to_floats(Integers a) { return {static_cast<float>(a.v)}; }
inline Integers widened(const uint8_t* p) { return {*p}; }
inline Integers widened_signed(const uint8_t* p) { return {static_cast<int8_t>(*p)}; }
inline Integers operator&(Integers a, int mask) { return {a.v & mask}; }
inline Integers operator|(Integers a, Integers b) { return {a.v | b.v}; }
inline Integers operator<<(Integers a, int left) { return {a.v << left}; }
inline Integers operator>>(Integers a, int right) { return {a.v >> right}; }
inline Floats powers_less_128(Integers e) {
  return {power_less_128(e.v)};
}

#endif

// ---- formats ----

constexpr GroupLayout layout_of(Format format) { return kGroupLayouts[static_cast<int>(format)]; }

constexpr bool has_small_codes(Format format) { return layout_of(format).offset < 128; }

constexpr bool has_six_bit_scales(Format format) {
  return format == Format::U4K || format == Format::U5K;
}

constexpr bool has_five_bits(Format format) {
  return format == Format::U5 || format == Format::U5Min || format == Format::U5K;
}

// int8 and int4 made at load, whose kernels are told how many groups a block has.
constexpr bool has_several_spans(Format format) {
  return format == Format::U8 || format == Format::U4;
}

// With its share of the header.
constexpr int group_bytes(Format format) {
  return layout_of(format).code_bytes + layout_of(format).header_bytes / layout_of(format).span;
}

// A format's table, its offset added, so that codes are unsigned.
struct CodeTable {
  int8_t values[16];
};

constexpr CodeTable code_table(Format format) {
  CodeTable table{};
  for (int i = 0; i < 16; i++) {
    const int value = format == Format::Table4 ? kTableValues[i] : kMxValues[i];
    table.values[i] = static_cast<int8_t>(value + layout_of(format).offset);
  }
  return table;
}

template <Format format>
constexpr CodeTable kCodeTable = code_table(format);

// Step `step` of kLanes outputs; `codes` is where the group's codes begin for the first of them.
template <Format format, int step>
OCTAVO_INLINE Codes decode(const uint8_t* codes) {
  if constexpr (format == Format::U8) {
    return load_codes(codes + step * kCodeRow);
  } else {
    constexpr int kPairs = kSteps / 2;
    const Codes two = load_codes(codes + step / 2 * kCodeRow);
    const Codes four_bits = masked(step % 2 ? shifted<-4>(two) : two, 15);
    if constexpr (has_five_bits(format)) {
      const Codes fifth = load_codes(codes + kPairs * kCodeRow);
      return with_bits(four_bits, shifted<4 - step>(fifth), 0x10);
    } else if constexpr (format == Format::U6) {
      const Codes upper = load_codes(codes + (kPairs + step / 4) * kCodeRow);
      return with_bits(four_bits, shifted<4 - 2 * (step % 4)>(upper), 0x30);
    } else if constexpr (format == Format::Table4 || format == Format::Mx4) {
      return look_up(kCodeTable<format>.values, four_bits);
    } else {
      return four_bits;
    }
  }
}

// One code, offset included, for looking up single rows.
template <Format format>
inline int code_at(const uint8_t* codes, int output, int input) {
  const int step = input / 4;
  const uint8_t* byte = codes + output * 4 + input % 4;
  if constexpr (format == Format::U8) return byte[step * kCodeRow];
  const int four_bits = byte[step / 2 * kCodeRow] >> (step % 2 * 4) & 15;
  if constexpr (has_five_bits(format)) {
    return four_bits | (byte[kSteps / 2 * kCodeRow] >> step & 1) << 4;
  } else if constexpr (format == Format::U6) {
    const int upper = byte[(kSteps / 2 + step / 4) * kCodeRow] >> (step % 4 * 2) & 3;
    return four_bits | upper << 4;
  } else if constexpr (format == Format::Table4 || format == Format::Mx4) {
    return static_cast<uint8_t>(kCodeTable<format>.values[four_bits]);
  } else {
    return four_bits;
  }
}

// Where in a prepared group the integer sums over all inputs, or over half of them, start.
template <Format format>
constexpr int start_at(int part) {
  switch (layout_of(format).offset) {
    case 8: return kPreparedStart8;
    case 16: return kPreparedStart16;
    case 32: return kPreparedStart32 + part * 4;
    default: return kPreparedStart128;
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
