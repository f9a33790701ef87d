// Sums of values that are kept beside the keys.
#pragma once

#include "kernels/attention_scores.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

// ---- sums of values ----

// The address of each block's values: in the cache, or of a clean copy.
template <typename Element>
struct ValueBlocks {
  const Element* at[kSplitBlocks];
};

template <CacheFormat kFormat, int kRows, int kVectors, bool kHalf>
void add_values(const Item& item, const Blocks& blocks,
                const ValueBlocks<typename Cells<kFormat>::Element>& values, int dim) {
  using Element = typename Cells<kFormat>::Element;
  constexpr int kWords = Cells<kFormat>::kPairs ? 1 : 2;
  constexpr int kSteps = kBlockTokens / 2;
  const int size = value_dim(item.shape);
  const uint32_t* words = reinterpret_cast<const uint32_t*>(item.scratch.scores);
  Floats sums[kRows][kVectors] = {};
  for (int b = blocks.first; b < blocks.end; ++b) {
    if (item.coming->count > 0) {
      const int last = --item.coming->count;
      ask_for_keys<kFormat>(item, item.coming->cells[last]);
    }
    const Element* from[kVectors];
    for (int v = 0; v < kVectors; ++v)
      from[v] = values.at[b] + (dim + v * kLanes) * Cells<kFormat>::kLaneElements;
    add_products<kFormat, kScoreStride, kWords, kHalf, false>(sums, from, size, kSteps,
                                                       words + b * kSteps * kWords);
  }
  const int record = record_floats(size);
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < kVectors; ++v)
      store(item.scratch.records + m * record + kRecordHead + dim + v * kLanes, sums[m][v]);
}

template <CacheFormat kFormat, int kRows>
void sum_values(const Item& item, const Blocks& blocks,
                const ValueBlocks<typename Cells<kFormat>::Element>& values) {
  constexpr int kMost = vectors_for(kRows, kDotsPairs);
  const int size = value_dim(item.shape);
  int dim = 0;
  for (; dim + kMost * kLanes <= size; dim += kMost * kLanes)
    add_values<kFormat, kRows, kMost, false>(item, blocks, values, dim);
  if constexpr (kMost > 4) {
    for (; dim + 4 * kLanes <= size; dim += 4 * kLanes)
      add_values<kFormat, kRows, 4, false>(item, blocks, values, dim);
  }
  for (; dim + kLanes <= size; dim += kLanes)
    add_values<kFormat, kRows, 1, false>(item, blocks, values, dim);
  if constexpr (kReadsHalves) {
    if (dim < size) add_values<kFormat, kRows, 1, true>(item, blocks, values, dim);
  }
}

// ---- cells that only some queries see ----

// Whether all values of tokens [low, high) of the blocks are finite. A float is not finite if
// all bits of its exponent are set; adding one to them then carries into the sign bit.
template <CacheFormat kFormat>
bool finite(const Item& item, const ValueBlocks<typename Cells<kFormat>::Element>& values, int low,
            int high) {
  if constexpr (has_scales(kFormat)) return true;  // scales are checked apart
  const int size = value_dim(item.shape);
  constexpr int kTokens = kFormat == CacheFormat::F32 ? 1 : 2;  // in a word
  for (int token = low / kTokens * kTokens; token < high; token += kTokens) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(
        values.at[token / kBlockTokens] + value_at<kFormat>(token % kBlockTokens, 0, size));
    uint32_t carried = 0;
    if constexpr (kTokens == 1) {
      for (int d = 0; d < size; ++d) carried |= (words[d] & 0x7F800000u) + 0x00800000u;
      carried &= 0x80000000u;
    } else {
      for (int d = 0; d < size; ++d) carried |= (words[d] & 0x7F807F80u) + 0x00800080u;
      const uint32_t first = token >= low ? 0x8000u : 0u;
      carried &= first | (token + 1 < high ? 0x80000000u : 0u);
    }
    if (carried) return false;
  }
  return true;
}

// The same where they are a part of the keys: sixteen words are of two dimensions, or of one.
template <CacheFormat kFormat>
bool finite_keys(const Item& item, const ValueBlocks<typename Cells<kFormat>::Element>& values,
                 int low, int high) {
  if constexpr (has_scales(kFormat)) return true;
  constexpr bool kFloats = kFormat == CacheFormat::F32;
  constexpr uint32_t kExponents = kFloats ? 0x7F800000u : 0x7F807F80u;
  constexpr uint32_t kOnes = kFloats ? 0x00800000u : 0x00800080u;
  const int rows = item.shape.latent / (kFloats ? 1 : 2);
  for (int token = low; token < high;) {
    const int block = token / kBlockTokens;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(values.at[block]);
    uint32_t carried[kBlockTokens] = {};
    for (int row = 0; row < rows; ++row, words += kBlockTokens)
      for (int i = 0; i < kBlockTokens; ++i) carried[i] |= (words[i] & kExponents) + kOnes;
    for (; token < high && token / kBlockTokens == block; ++token) {
      const int at = token % kBlockTokens;
      if (kFloats && carried[at] >> 31) return false;
      const uint32_t both = carried[at / 2 * 2] | carried[at / 2 * 2 + 1];  // of two dimensions
      if (!kFloats && (both & (at % 2 ? 0x80000000u : 0x8000u))) return false;
    }
  }
  return true;
}

// Replaces block b by a copy that has zeros outside of the range.
template <CacheFormat kFormat, typename Element>
void clean_block(const Item& item, Range seen, int b, Element* copy, ValueBlocks<Element>& values) {
  const int size = value_dim(item.shape);
  for (int token = 0; token < kBlockTokens; ++token) {
    const int position = b * kBlockTokens + token;
    const bool is_seen = seen.low <= position && position < seen.high;
    for (int dim = 0; dim < size; ++dim) {
      const size_t at = item.shape.latent ? latent_at<kFormat>(token, dim)
                                          : value_at<kFormat>(token, dim, size);
      copy[at] = is_seen ? values.at[b][at] : Element{};
    }
  }
  values.at[b] = copy;
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
