// Upper bounds of what the tier's kernels can reach: reading memory, and products whose operands
// never leave the registers. Each tier defines `keep` in its registers.h, which makes the compiler
// believe that a value is read and changed.
#pragma once

#include <bf16.h>
#include <registers.h>

#include "kernels/codes.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace peak {

// Independent sums: more than the latency of an instruction in cycles, and no more than there are
// registers.
constexpr int kSums = 12;
constexpr size_t kReadAhead = 4096;  // bytes

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
      keep(codes);  // otherwise the compiler moves parts of the product out of the loop
      return dot<true>(sum, codes, four);
    });
    return sums * 8;  // four products and four sums
  }
  if (products == Products::Bf16) {
    repeat(rounds, splat(0.0f), [&](Floats sum) { return add_bf16(sum, ones); });
    return sums * kBf16Operations;
  }
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

}  // namespace peak

void add_peak_rates(KernelTable& table) {
  table.read_all = peak::read_all;
  table.multiply_registers = peak::multiply;
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
