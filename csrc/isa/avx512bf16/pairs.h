// Pairs of bf16 numbers in one register, which an instruction multiplies at once.
#pragma once

#include <immintrin.h>
#include <vectors.h>

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

constexpr bool kDotsPairs = true;
using Bf16Pairs = __m512i;

inline Bf16Pairs as_read(Ints pairs) { return reinterpret_cast<__m512i>(pairs); }

inline Floats code_floats(const int8_t* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return __builtin_convertvector((Ints)_mm512_maskz_cvtepi8_epi32(0xFFFF, bytes), Floats);
}

// A code has 7 bits, a bf16 8: nothing is rounded.
template <bool kHalf>
inline Bf16Pairs read_codes(const int8_t* from) {
  const Floats low = code_floats(from);
  if (kHalf) return (__m512i)_mm512_cvtne2ps_pbh(Floats{}, low);
  const Floats high = code_floats(from + kLanes);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// A table of bf16 numbers that instructions look up by 5 bits.
struct alignas(64) Table {
  uint16_t at[32];
  __m512i read() const { return _mm512_load_si512(at); }
};
// Numbers below the smallest normal one, by their mantissa.
constexpr Table kSmallE4M3{{0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60}};
constexpr Table kSmallE5M2{{0, 0x3780, 0x3800, 0x3840}};
// Integers of 4 bits, twice: the bit above them is read too.
constexpr Table kIntegers{{0,      0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,
                           0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80,
                           0,      0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,
                           0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80}};

template <bool kHalf, int kMantissa>
inline Bf16Pairs read_float8(const int8_t* from) {
  constexpr int kShift = 7 - kMantissa;
  constexpr short kBiases = (kMantissa == 3 ? 127 - 7 : 127 - 15) << 7;
  const __m512i codes = (__m512i)read_code_pairs<kHalf>(from);
  const __m512i sizes =
      _mm512_and_si512(_mm512_slli_epi16(codes, kShift), _mm512_set1_epi16(0x7F << kShift));
  const __m512i normal = _mm512_add_epi16(sizes, _mm512_set1_epi16(kBiases));
  const __m512i exponents = _mm512_set1_epi16(0x7F >> kMantissa << kMantissa);
  const __m512i small = (kMantissa == 3 ? kSmallE4M3 : kSmallE5M2).read();
  const __m512i magnitudes = _mm512_mask_permutexvar_epi16(
      normal, _mm512_testn_epi16_mask(codes, exponents), codes, small);
  // The sign of the codes, the other bits of the magnitudes.
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(INT16_MIN), codes, magnitudes, 0xCA);
}

template <bool kHalf>
inline Bf16Pairs read_code_halves(const uint8_t* from) {
  const __m512i bytes = (__m512i)read_bytes<kHalf>(from);
  return _mm512_permutexvar_epi16(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12)),
                                  kIntegers.read());
}

template <bool kPairs>
inline void store_weights(float* row, int at, Floats weights) {
  if constexpr (!kPairs) {
    store(row + at, weights);
  } else {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(weights);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<uint16_t*>(row) + at), rounded);
  }
}

inline Floats times(Floats sum, __m512i cells, const uint32_t* words) {
  const __m512i both = _mm512_set1_epi32(static_cast<int>(words[0]));
  return _mm512_dpbf16_ps(sum, (__m512bh)both, (__m512bh)cells);
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
