// Scores of an item's queries and the positions of a split, and the weights that are made of them.
#pragma once

#include "kernels/attention_item.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

// ---- products ----

// Adds `steps` steps to sums of kVectors vectors for kRows queries. The other factors are in
// words, kRowStride from query to query and kStepStride from step to step. With kAcross the cells
// are pairs of the other kind.
template <CacheFormat kFormat, int kRowStride, int kStepStride, bool kHalf, bool kAcross, int kRows,
          int kVectors>
inline __attribute__((always_inline)) void add_products(
    Floats (&sums)[kRows][kVectors], const typename Cells<kFormat>::Element* const* from, int width,
    int steps, const uint32_t* words) {
  for (int step = 0; step < steps; ++step) {
    decltype(Cells<kFormat>::template read<kHalf>(from[0], width)) cells[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      cells[v] = Cells<kFormat>::template read<kHalf>(
          from[v] + elements<kFormat>(size_t(step) * 2 * width), width);
      if constexpr (kAcross) cells[v] = across(cells[v]);
    }
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sums[m][v] = times(sums[m][v], cells[v], words + m * kRowStride + step * kStepStride);
    }
  }
}

// While scores of latent rows are made, so many lines of the next split are prefetched every so
// many steps: for 16 heads a quarter of it. Sums of values ask for the rest. If they asked for all
// of it, they would wait: it would be more than half of what a core reads in that time (Zen 5).
constexpr int kStepsOfLines = 8;
constexpr int kScoreLines = 2;

// q · k for some queries and the kScoreBlocks blocks from block b on, to scores[query][position].
template <CacheFormat kFormat, int kRows, bool kLatent>
void score_blocks(const Item& item, const Blocks& blocks, int b, const uint32_t* queries,
                  float* scores) {
  using Element = typename Cells<kFormat>::Element;
  const int head_dim = item.cache.head_dim;
  const Element* keys = static_cast<const Element*>(item.cache.keys);
  const Element* from[kScoreVectors];
  const float* scales[kScoreVectors];
  for (int v = 0; v < kScoreVectors; ++v) {
    const size_t cell = blocks.cells[b + v * kLanes / kBlockTokens];
    const int lane = v * kLanes % kBlockTokens;
    from[v] = keys + elements<kFormat>(cell * head_dim) + lane * Cells<kFormat>::kLaneElements;
    scales[v] = item.cache.key_scales + cell + lane;
  }
  Floats sums[kRows][kScoreVectors] = {};
  constexpr int kWords = Cells<kFormat>::kPairs ? 1 : 2;
  constexpr bool kAcross = kLatent && kFormat != CacheFormat::F32;
  const int steps = head_dim / 2, piece = kLatent ? kStepsOfLines : steps;
  for (int step = 0; step < steps; step += piece) {
    if constexpr (kLatent) ask_for_lines<kFormat>(item, *item.coming, kScoreLines);
    add_products<kFormat, query_stride(Cells<kFormat>::kPairs), kWords, false, kAcross>(
        sums, from, kBlockTokens, steps - step < piece ? steps - step : piece,
        queries + step * kWords);
    for (int v = 0; v < kScoreVectors; ++v)
      from[v] += elements<kFormat>(size_t(piece) * 2 * kBlockTokens);
  }
  for (int m = 0; m < kRows; ++m) {
    float* to = scores + m * kScoreStride + b * kBlockTokens;
    for (int v = 0; v < kScoreVectors; ++v) {
      if constexpr (has_scales(kFormat)) sums[m][v] *= load<Floats>(scales[v]);
      store(to + v * kLanes, sums[m][v]);
    }
  }
}

// The same for all blocks.
template <CacheFormat kFormat, int kRows>
void make_scores(const Item& item, const Blocks& blocks, const uint32_t* queries, bool first_use) {
  for (int b = blocks.first; b < blocks.end; b += kScoreBlocks) {
    if (first_use) {
      for (int ahead = b; ahead < b + kScoreBlocks && ahead < blocks.end; ++ahead) {
        ask_for_values<kFormat>(item, blocks.cells[ahead]);
        if (ahead + 2 < blocks.end) ask_for_keys<kFormat>(item, blocks.cells[ahead + 2]);
      }
    }
    score_blocks<kFormat, kRows, false>(item, blocks, b, queries, item.scratch.scores);
  }
}

// ---- softmax ----

// The lanes of a vector of positions at `at` that are in the range.
inline Ints within(Range range, int at) {
  const Ints positions = lane_numbers() + at;
  return (positions >= range.low) & (positions < range.high);
}

// What a query's head adds to the scores of positions, by their distance from the query.
struct Distances {
  const float* values;  // of the head; nullptr: nothing
  int reach;
  int query;  // the query's position, counted from the split's first

  Floats at(int position) const {
    const int distance = position - query;
    if (distance >= -reach && distance + kLanes - 1 <= reach)
      return load<Floats>(values + reach + distance);
    float each[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const int one = distance + lane;
      each[lane] = values[reach + (one < -reach ? -reach : one > reach ? reach : one)];
    }
    return load<Floats>(each);
  }
};

inline Distances distances_of(const Item& item, int query, int split) {
  const AttentionShape& shape = item.shape;
  if (!shape.distances) return {nullptr, 0, 0};
  const int head = item.kv_head * item.group + query % item.group;
  return {shape.distances + size_t(head) * (2 * shape.reach + 1), shape.reach,
          item.sequence.first_position + query / item.group - split * kSplit};
}

// Whether scores are multiplied by the scale before their softmax, or in it.
inline bool are_scaled(const AttentionShape& shape) {
  return shape.softcap > 0.0f || shape.distances;
}

// The larger ones of `most` and of all scores from `at` to `end`, whole vectors, lane by lane.
inline Floats largest_among(const float* scores, int at, int end, Floats most) {
  Floats others[3] = {most, most, most};  // four chains of operations overlap
  for (; at + 4 * kLanes <= end; at += 4 * kLanes) {
    most = larger(load<Floats>(scores + at), most);
    for (int i = 0; i < 3; ++i)
      others[i] = larger(load<Floats>(scores + at + (i + 1) * kLanes), others[i]);
  }
  for (; at < end; at += kLanes) most = larger(load<Floats>(scores + at), most);
  return larger(larger(others[0], others[1]), larger(others[2], most));
}

// Caps the scores of one query's vectors from `at` to `end` in place and masks those that it does
// not see; returns the larger ones of `most` and of those visible, lane by lane.
inline Floats mask_vectors(const AttentionShape& shape, Range seen, const Distances& distances,
                           int at, int end, float* scores, Floats most) {
  const Floats scale = splat(shape.scale);
  for (; at < end; at += kLanes) {
    Floats x = load<Floats>(scores + at);
    if (shape.softcap > 0.0f) {
      x = hyperbolic_tangent(x * scale / splat(shape.softcap)) * splat(shape.softcap);
      store(scores + at, x);
    }
    if (distances.values) {
      x = (shape.softcap > 0.0f ? x : x * scale) + distances.at(at);
      store(scores + at, x);
    }
    if (at < seen.low || at + kLanes > seen.high) {
      x = select(within(seen, at), x, splat(-kInfinity));
      store(scores + at, x);
    }
    most = larger(x, most);
  }
  return most;
}

// The same for all blocks that the query sees. `make_weights` multiplies by the scale if the scores
// are not scaled here. Vectors that it sees whole, and whose scores do not change, are only read.
inline Floats mask_scores(const AttentionShape& shape, Range seen, const Distances& distances,
                          float* scores) {
  const int begin = seen.low / kBlockTokens * kBlockTokens;
  const int end = (seen.high + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  const int low = (seen.low + kLanes - 1) / kLanes * kLanes, high = seen.high / kLanes * kLanes;
  Floats most = splat(-kInfinity);
  if (are_scaled(shape) || low >= high)
    return mask_vectors(shape, seen, distances, begin, end, scores, most);
  most = mask_vectors(shape, seen, distances, begin, low, scores, most);
  most = largest_among(scores, low, high, most);
  return mask_vectors(shape, seen, distances, high, end, scores, most);
}

// Replaces the scores of all blocks by weights exp(scale · (score - most)), zero where the query
// sees nothing; returns their sums, column by column.
template <CacheFormat kFormat>
Columns make_weights(const Item& item, const Blocks& blocks, Range seen, float scale, float most,
                    float* scores) {
  constexpr bool kPairs = Cells<kFormat>::kPairs;
  const Floats base = splat(most == -kInfinity ? 0.0f : most);
  const Floats factor = splat(scale * 1.44269504f);  // exp(x) = 2^(x / ln 2)
  Columns sums{};
  const int end = blocks.end * kBlockTokens;
  int at = blocks.first * kBlockTokens;
  for (; at + kBlockTokens <= seen.low && at < end; at += kBlockTokens)
    for (int v = 0; v < kBlockVectors; ++v)
      store_weights<kPairs>(scores, at + v * kLanes, Floats{});
  for (; at < seen.high && at < end; at += kBlockTokens) {
    for (int v = 0; v < kBlockVectors; ++v) {
      const int first = at + v * kLanes;
      Floats weights = power_of_two(load<Floats>(scores + first) - base, factor);
      sums.of[v] += weights;
      if constexpr (has_scales(kFormat)) {
        const float* scales =
            item.cache.value_scales + blocks.cells[at / kBlockTokens] + first % kBlockTokens;
        weights *= load<Floats>(scales);
        if (first < seen.low || first + kLanes > seen.high)
          weights = select(within(seen, first), weights, Floats{});
      }
      store_weights<kPairs>(scores, first, weights);
    }
  }
  for (; at < end; at += kLanes) store_weights<kPairs>(scores, at, Floats{});
  return sums;
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
