// Values that are a part of keys: latent rows are kept once (table.h).
//
// A lane of the sums of values is a query. The other factor, the same for all lanes, is a number of
// a value, or the numbers of a pair of tokens, as they lie in the cache. So no row is turned, only
// the weights of the queries and their sums, which are few. Every sum adds the same numbers in the
// same order as in `add_values`.
#pragma once

#include "kernels/attention_values.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

// Blocks whose values are multiplied, for all dimensions, before those of the next ones, half of a
// split: their keys are then no longer needed, and the next split's may take their place in the
// caches. With all of a split at once, its keys and the next one's would exceed 1 MiB.
constexpr int kLatentBlocks = 16;
// Dimensions that remain at the end: latent rows have a multiple of them.
constexpr int kRestDims = kLatentDims < 8 ? kLatentDims : 8;

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

// Turns the first `count` columns of 16 rows into rows of 16. Columns are read kLanes at a time.
inline void turn(const uint32_t* from, size_t from_stride, int count, uint32_t* to,
                 size_t to_stride) {
  for (int column = 0; column < count; column += kLanes) {
    for (int row = 0; row < kBlockTokens; row += kLanes) {
      Ints square[kLanes];
      for (int i = 0; i < kLanes; ++i)
        square[i] = load<Ints>(from + (row + i) * from_stride + column);
      transpose(square);
      for (int i = 0; i < kLanes && column + i < count; ++i)
        store(to + (column + i) * to_stride + row, square[i]);
    }
  }
}

// Stores the factors of a block's values: pairs of bf16 numbers, or floats, of two dimensions first
// those of the even tokens and then those of the odd ones.
template <CacheFormat kFormat, int kDims>
inline void widen_values(const typename Cells<kFormat>::Element* keys, uint32_t* words) {
  constexpr int kLaneElements = Cells<kFormat>::kLaneElements;
  for (int dim = 0; dim < kDims; dim += 2) {
    for (int lane = 0; lane < kBlockTokens; lane += kLanes) {
      const auto cells = Cells<kFormat>::template read<false>(
          keys + dim * kBlockTokens + lane * kLaneElements, kBlockTokens);
      if constexpr (Cells<kFormat>::kPairs) {
        store(words + dim * kBlockTokens / 2 + lane, cells);
      } else {
        const Two tokens = kFormat == CacheFormat::F32 ? across(cells) : cells;
        store(words + dim * kBlockTokens + lane, tokens.even);
        store(words + (dim + 1) * kBlockTokens + lane, tokens.odd);
      }
    }
  }
}

// A step's weights of kLanes queries.
template <CacheFormat kFormat>
inline auto read_weights(const uint32_t* weights) {
  if constexpr (Cells<kFormat>::kPairs) return as_read(load<Ints>(weights));
  else return Two{load<Floats>(weights), load<Floats>(weights + kLatentQueries)};
}

// Adds blocks [begin, end) to the sums of kDims dimensions, which are kept as [kDims][16].
template <CacheFormat kFormat, int kDims>
void add_latent(const Item& item, const ValueBlocks<typename Cells<kFormat>::Element>& values,
                int begin, int end, int dim, bool is_first, float* kept) {
  constexpr bool kPairs = Cells<kFormat>::kPairs;
  constexpr bool kInPlace = kPairs && kFormat == CacheFormat::BF16;  // the cache has the factors
  constexpr int kWords = kPairs ? 1 : 2;  // of a step and a dimension
  constexpr int kSteps = kBlockTokens / 2;
  // As many as are read here, and one for the numbers of keys that are not in values.
  constexpr int kLines = kDims * kBlockTokens * sizeof(*values.at[0]) / kAlign + 1;
  Floats sums[kDims][kBlockVectors];
  for (int d = 0; d < kDims; ++d)
    for (int v = 0; v < kBlockVectors; ++v)
      sums[d][v] = is_first ? Floats{} : load<Floats>(kept + d * kBlockTokens + v * kLanes);
  alignas(kAlign) uint32_t words[kInPlace ? 1 : kDims * kSteps * kWords];
  for (int b = begin; b < end; ++b) {
    ask_for_lines<kFormat>(item, *item.coming, kLines);
    const auto* from = values.at[b] + dim * kBlockTokens;
    const uint32_t* factors = words;
    if constexpr (kInPlace) {
      factors = reinterpret_cast<const uint32_t*>(from);
      if (b + 1 < end)
        ask_for_bytes(values.at[b + 1] + dim * kBlockTokens, kDims * kBlockTokens * sizeof *from);
    } else {
      widen_values<kFormat, kDims>(from, words);
    }
    const uint32_t* weights = item.scratch.weights + b * kSteps * kWords * kLatentQueries;
    for (int step = 0; step < kSteps; ++step, weights += kWords * kLatentQueries) {
      decltype(read_weights<kFormat>(weights)) cells[kBlockVectors];
      for (int v = 0; v < kBlockVectors; ++v)
        cells[v] = read_weights<kFormat>(weights + v * kLanes);
#pragma GCC unroll 16
      for (int d = 0; d < kDims; ++d) {
        const uint32_t* factor = factors + (d / 2 * kWords * kSteps + step) * 2 + d % 2;
#pragma GCC unroll 4
        for (int v = 0; v < kBlockVectors; ++v) {
          if constexpr (kPairs) {
            sums[d][v] = times(sums[d][v], cells[v], factor);
          } else {
            const Floats even = fused(floats_of(splat_bits(*factor)), cells[v].even, sums[d][v]);
            sums[d][v] = fused(floats_of(splat_bits(factor[kBlockTokens])), cells[v].odd, even);
          }
        }
      }
    }
  }
  for (int d = 0; d < kDims; ++d)
    for (int v = 0; v < kBlockVectors; ++v)
      store(kept + d * kBlockTokens + v * kLanes, sums[d][v]);
}

template <CacheFormat kFormat, int kRows = kQueries>
inline void score_some(const Item& item, const Blocks& blocks, int b, const uint32_t* queries,
                       int count, float* scores) {
  if (count == kRows) score_blocks<kFormat, kRows, true>(item, blocks, b, queries, scores);
  else if constexpr (kRows > 1)
    score_some<kFormat, kRows - 1>(item, blocks, b, queries, count, scores);
}

// q · k for `count` queries, all of which use a few blocks before the next ones are read.
template <CacheFormat kFormat>
void make_latent_scores(const Item& item, const Blocks& blocks, const uint32_t* queries, int count,
                        bool first_use) {
  const int parts = (count + kQueries - 1) / kQueries;
  for (int b = blocks.first; b < blocks.end; b += kScoreBlocks) {
    for (int ahead = b; first_use && ahead < b + kScoreBlocks && ahead + 2 < blocks.end; ++ahead)
      ask_for_keys<kFormat>(item, blocks.cells[ahead + 2]);
    for (int part = 0; part < parts; ++part) {
      const int first = count * part / parts;
      score_some<kFormat>(item, blocks, b, queries + first * query_stride(Cells<kFormat>::kPairs),
                          count * (part + 1) / parts - first,
                          item.scratch.scores + first * kScoreStride);
    }
  }
}

// The sums of values of `count` queries, to scratch.records. The lanes after them multiply whatever
// is there.
template <CacheFormat kFormat>
void sum_latent(const Item& item, const Blocks& blocks, int count,
                const ValueBlocks<typename Cells<kFormat>::Element>& values) {
  constexpr int kBlockWords = kBlockTokens / (Cells<kFormat>::kPairs ? 2 : 1);
  const int size = item.shape.latent, record = record_floats(size);
  const uint32_t* scores = reinterpret_cast<const uint32_t*>(item.scratch.scores);
  const int first = blocks.first * kBlockWords;
  turn(scores + first, kScoreStride, (blocks.end - blocks.first) * kBlockWords,
       item.scratch.weights + first * kLatentQueries, kLatentQueries);
  for (int begin = blocks.first; begin < blocks.end; begin += kLatentBlocks) {
    const int end = begin + kLatentBlocks < blocks.end ? begin + kLatentBlocks : blocks.end;
    const bool is_first = begin == blocks.first;
    float* sums = item.scratch.sums;
    int dim = 0;
    for (; dim + kLatentDims <= size; dim += kLatentDims)
      add_latent<kFormat, kLatentDims>(item, values, begin, end, dim, is_first,
                                       sums + dim * kLatentQueries);
    for (; dim < size; dim += kRestDims)
      add_latent<kFormat, kRestDims>(item, values, begin, end, dim, is_first,
                                     sums + dim * kLatentQueries);
  }
  const uint32_t* sums = reinterpret_cast<uint32_t*>(item.scratch.sums);
  uint32_t* records = reinterpret_cast<uint32_t*>(item.scratch.records) + kRecordHead;
  for (int dim = 0; dim < size; dim += kBlockTokens)
    turn(sums + dim * kLatentQueries, kLatentQueries, count, records + dim, record);
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
