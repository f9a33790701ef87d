// Activations as int8: for each 32 inputs a scale d = max|x| / 127 and q = x / d, rounded to even,
// with the sums of q that products with codes need (kernels/group_layout.h).
#pragma once

#include "kernels/codes.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// The bits of the largest magnitude of 32 floats. Compared as whole numbers magnitudes keep their
// order, and what is not a number counts as larger than infinity, so nothing bad is overlooked.
// `store_codes` stores whole numbers from -127 to 127 as bytes and sums the first and the last 16.
struct Halves {
  int32_t first, second;
};

#if defined(__AVX512VNNI__)

inline uint32_t largest_magnitude(const float* x) {
  const __m512i a = _mm512_castps_si512(magnitude(load(x)).v);
  const __m512i b = _mm512_castps_si512(magnitude(load(x + kLanes)).v);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}

inline __m256i to_bytes(const Floats (&a)[2]) {
  const __m128i first = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a[0].v));
  const __m128i second = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a[1].v));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

#elif defined(__AVX2__)

inline uint32_t largest_magnitude(const float* x) {
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < kGroup; i += kLanes) {
    most = _mm256_max_epu32(most, _mm256_castps_si256(magnitude(load(x + i)).v));
  }
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

inline __m256i to_bytes(const Floats (&a)[4]) {
  const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(a[0].v), _mm256_cvtps_epi32(a[1].v));
  const __m256i second = _mm256_packs_epi32(_mm256_cvtps_epi32(a[2].v), _mm256_cvtps_epi32(a[3].v));
  // Packing goes by halves of registers: put the parts of four bytes into order again.
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

#else

inline uint32_t largest_magnitude(const float* x) {
  uint32_t most = 0;
  for (int i = 0; i < kGroup; i++) {
    const uint32_t bits = float_to_bits(x[i]) & 0x7FFFFFFFu;
    if (bits > most) most = bits;
  }
  return most;
}

#endif

#if defined(__AVX2__)

inline Halves store_codes(const Floats (&codes)[kGroup / kLanes], uint8_t* out) {
  const __m256i bytes = to_bytes(codes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1));
  return {_mm256_extract_epi32(sums, 0), _mm256_extract_epi32(sums, 4)};
}

#else

inline Halves store_codes(const Floats (&codes)[kGroup], uint8_t* out) {
  int32_t sums[2] = {0, 0};
  for (int i = 0; i < kGroup; i++) {
    const int32_t code = static_cast<int32_t>(codes[i].v);
    out[i] = static_cast<uint8_t>(code);
    sums[i / 16] += code;
  }
  return {sums[0], sums[1]};
}

#endif

inline void write_integer(uint8_t* p, int32_t value) { __builtin_memcpy(p, &value, sizeof value); }
inline void write_float(uint8_t* p, float value) { __builtin_memcpy(p, &value, sizeof value); }

// What stands behind the codes.
inline void write_sums(uint8_t* out, float scale, Halves halves) {
  const int32_t sum = halves.first + halves.second;
  write_float(out + kPreparedScale, scale);
  write_float(out + kPreparedSum, scale * static_cast<float>(sum));
  write_integer(out + kPreparedStart8, -8 * sum);
  write_integer(out + kPreparedStart16, -16 * sum);
  write_integer(out + kPreparedStart128, -128 * sum);
  write_integer(out + kPreparedStart32, -32 * halves.first);
  write_integer(out + kPreparedStart32 + 4, -32 * halves.second);
  write_integer(out + kPreparedStart32 + 8, 0);  // the rest of the line
}

inline void prepare_group(const float* x, uint8_t* out) {
  constexpr uint32_t kInfinity = 0x7F800000u;
  const uint32_t most = largest_magnitude(x);
  // What is not finite gives a scale that is not a number: all of the row's products show it.
  const float scale = bits_to_float(most < kInfinity ? most : kInfinity + 0x400000u) / 127.0f;
  if (!(scale > 0.0f)) {
    __builtin_memset(out, 0, kGroup);
    return write_sums(out, scale, {0, 0});
  }
  // Where the scale is so small that it has few bits left, quotients exceed 127.
  const Floats divisor = splat(scale), limit = splat(127.0f);
  Floats codes[kGroup / kLanes];
  for (int i = 0; i < kGroup / kLanes; i++) {
    const Floats quotient = round_even(load(x + i * kLanes) / divisor);
    codes[i] = max(negate(limit), min(limit, quotient));
  }
  write_sums(out, scale, store_codes(codes, out));
}

inline size_t prepared_int8_bytes(int inputs) {
  return static_cast<size_t>(inputs / kGroup) * kPreparedGroup;
}

inline void prepare_int8(const float* x, size_t x_stride, int rows, int inputs, uint8_t* prepared) {
  for (int row = 0; row < rows; row++) {
    for (int first = 0; first < inputs; first += kGroup) {
      prepare_group(x + row * x_stride + first, prepared);
      prepared += kPreparedGroup;
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
