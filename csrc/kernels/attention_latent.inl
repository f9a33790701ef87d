// Values that are a part of keys: latent rows are kept once, as keys, and turned here into the
// layout in which products read values (table.h).
#pragma once

#include "kernels/attention_write.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

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

// Turns rows into columns.
template <int half = kLanes / 2>
inline void transpose(Ints (&rows)[kLanes]) {
  constexpr std::make_integer_sequence<int, kLanes> lanes;
  for (int row = 0; row < kLanes; ++row) {
    if (row & half) continue;
    const Ints one = rows[row], other = rows[row + half];
    rows[row] = without_bit<half>(one, other, lanes);
    rows[row + half] = with_bit<half>(one, other, lanes);
  }
  if constexpr (half > 1) transpose<half / 2>(rows);
}

// The lanes of two vectors in turn: one[0], other[0], one[1] …, from lane `first` of each.
template <int first, int... lane>
inline Ints in_turn(Ints one, Ints other, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(one, other, (first + lane / 2 + (lane % 2 ? kLanes : 0))...);
}

// Writes the values of 16 tokens: dimensions `first` … of their keys, `count` of them.
template <CacheFormat kFormat, typename Element>
void turn_values(const Element* keys, int first, int count, Element* values) {
  int dim = 0;
  if constexpr (kFormat == CacheFormat::F32) {
    for (; dim + kLanes <= count; dim += kLanes) {
      for (int token = 0; token < kBlockTokens; token += kLanes) {
        Ints rows[kLanes];
        for (int i = 0; i < kLanes; ++i)
          rows[i] = load<Ints>(keys + size_t(first + dim + i) * kBlockTokens + token);
        transpose(rows);
        for (int i = 0; i < kLanes; ++i) store(values + size_t(token + i) * count + dim, rows[i]);
      }
    }
  } else if constexpr (kFormat == CacheFormat::BF16) {
    constexpr std::make_integer_sequence<int, kLanes> lanes;
    constexpr int32_t kHigh = static_cast<int32_t>(0xFFFF0000u);
    for (; dim + 2 * kLanes <= count; dim += 2 * kLanes) {
      for (int token = 0; token < kBlockTokens; token += kLanes) {
        Ints rows[kLanes];
        for (int i = 0; i < kLanes; ++i)
          rows[i] = load<Ints>(keys + size_t(first + dim + 2 * i) * kBlockTokens + 2 * token);
        transpose(rows);
        for (int i = 0; i < kLanes; i += 2) {
          const Ints even = (rows[i] & 0xFFFF) | (rows[i + 1] << 16);
          const Ints odd = ((rows[i] >> 16) & 0xFFFF) | (rows[i + 1] & kHigh);
          Element* to = values + size_t(token + i) * count + 2 * dim;
          store(to, in_turn<0>(even, odd, lanes));
          store(to + 2 * kLanes, in_turn<kLanes / 2>(even, odd, lanes));
        }
      }
    }
  }
  for (; dim < count; ++dim) {
    const int key = first + dim;
    for (int token = 0; token < kBlockTokens; ++token)
      values[value_at<kFormat>(token, dim, count)] = keys[key_at<kFormat>(token, key)];
  }
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
