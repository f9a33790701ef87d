// What no kernel of this tier can outrun (kernels/limits.h).
#pragma once

#include "kernels/codes.inl"
#include "kernels/limits.h"

#define OCTAVO_JOIN_(a, b) a##b
#define OCTAVO_JOIN(a, b) OCTAVO_JOIN_(a, b)
#define OCTAVO_STRING_(a) #a
#define OCTAVO_STRING(a) OCTAVO_STRING_(a)

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Sums that do not wait for each other: more than an instruction takes cycles, and no more than
// there are registers.
constexpr int kSums = 12;
constexpr size_t kReadAhead = 4096;  // bytes

// The compiler is to believe that somebody looks at this, and changes it.
#if defined(__AVX2__)
template <typename Register>
OCTAVO_INLINE void keep(Register& one) { __asm__ volatile("" : "+x"(one.v)); }
#else
template <typename Register>
OCTAVO_INLINE void keep(Register& one) { __asm__ volatile("" : "+r"(one.v)); }
inline void keep(Floats& one) { __asm__ volatile("" : "+m"(one.v)); }
#endif

template <typename Sum, typename Add>
OCTAVO_INLINE void repeat(int64_t rounds, Sum nothing, Add add) {
  Sum sums[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; i++) sums[i] = nothing;
  for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; i++) {
      sums[i] = add(sums[i]);
      keep(sums[i]);
    }
  }
}

int64_t multiply(Products products, int64_t rounds) {
  const int64_t sums = rounds * kSums * kLanes;
  alignas(kAlign) uint8_t ones[kAlign];
  __builtin_memset(ones, 1, sizeof ones);
  if (products == Products::Int8) {
    Codes codes = load_codes(ones);
    const Four four = splat_four(ones);
    repeat(rounds, no_integers(), [&](Integers sum) {
      keep(codes);  // or parts of the product would be taken out of the loop
      return dot<true>(sum, codes, four);
    });
    return sums * 8;  // four products
  }
#if defined(__AVX512BF16__)
  if (products == Products::Bf16) {
    const __m512bh pairs = reinterpret_cast<__m512bh>(_mm512_loadu_si512(ones));
    repeat(rounds, splat(0.0f), [&](Floats sum) {
      return Floats{_mm512_dpbf16_ps(sum.v, pairs, pairs)};
    });
    return sums * 4;  // two products
  }
#endif
  const Floats factor = splat(0.5f);
  repeat(rounds, splat(1.0f), [&](Floats sum) {
    return fma(sum, factor, factor);
  });
  return sums * 2;
}

uint64_t read_all(const uint8_t* data, size_t bytes) {
  constexpr size_t kVector = sizeof(Codes);
  constexpr int kAtOnce = 256 / kVector;
  Codes seen[4] = {};
  size_t at = 0;
  for (; at + 256 <= bytes; at += 256) {
#pragma GCC unroll 4
    for (size_t line = 0; line < 256; line += kAlign) {
      __builtin_prefetch(data + at + kReadAhead + line, 0, 3);
    }
#pragma GCC unroll 64
    for (int i = 0; i < kAtOnce; i++) {
      seen[i % 4] = with_bits(seen[i % 4], load_codes(data + at + i * kVector), 0xFF);
    }
  }
  for (int i = 1; i < 4; i++) seen[0] = with_bits(seen[0], seen[i], 0xFF);
  uint64_t all = 0;
  __builtin_memcpy(&all, &seen[0], sizeof all < sizeof seen[0] ? sizeof all : sizeof seen[0]);
  return all;
}

const LimitTable table{OCTAVO_STRING(OCTAVO_TIER), read_all, multiply};

}  // namespace
}  // namespace OCTAVO_TIER

const LimitTable* OCTAVO_JOIN(OCTAVO_TIER, _limits)() { return &OCTAVO_TIER::table; }

}  // namespace octavo
