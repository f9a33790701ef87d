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
