// Paged attention: some rows of one sequence with one KV head, a split of 512 positions at a time.
//
// Within a split all scores are computed first, then their softmax over the split's own maximum,
// then the weighted sum of values. So each split yields a record (maximum, sum of weights, sums of
// values), and `fold` combines the records in order of splits, whether one item reads all splits or
// several items read one each. Every product sums its inputs in order into one accumulator, and
// positions that a query does not see have weight zero; so a query's bits do not depend on the
// other queries of the group.
//
// Zero times NaN is not zero. Cells that some queries of a group see and others do not are
// therefore checked first; if any of them is not finite, each query is computed by itself, over a
// copy in which the cells that it does not see are zeros.
#pragma once

#include "kernels/attention_latent.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

// Queries multiplied at once (kQueries), and of how many vectors the sums are (kScoreVectors,
// vectors_for): sizes.h of each tier.
constexpr int kScoreBlocks = kScoreVectors * kLanes / kBlockTokens;
constexpr int kSplitBlocks = kSplit / kBlockTokens;
constexpr int kScoreStride = kSplit + kBlockTokens;  // not 2 KiB; with space after an odd end
// Words from a query to the next: constant, for kernels; not a whole KiB.
constexpr int query_stride(bool pairs) { return kMostHeadDim / (pairs ? 2 : 1) + 16; }

inline int padded(int dim) { return (dim + 15) / 16 * 16; }
inline int record_floats(int dim) { return kRecordHead + padded(dim); }  // of a value's size
inline int record_floats(const AttentionShape& shape) { return record_floats(value_dim(shape)); }

// ---- records ----

// An empty record; the sink, if any, is a key that every query sees and that has no value.
inline void begin(float* state, int dim, const float* sink) {
  for (int i = 0; i < record_floats(dim); ++i) state[i] = 0.0f;
  state[0] = sink ? *sink : -kInfinity;
  state[1] = sink ? 1.0f : 0.0f;
}

// Adds the next split's record. A record without visible positions changes nothing.
inline void fold(float* state, const float* part, int dim) {
  if (part[0] == -kInfinity && part[1] == 0.0f) return;
  const float most = part[0] > state[0] ? part[0] : state[0];
  const float base = most == -kInfinity ? 0.0f : most;  // all scores were -inf: all exponents 0
  Floats weights = splat(state[0] - base);
  weights[1] = part[0] - base;
  weights = exponential(weights);
  const float keep = weights[0], take = weights[1];
  state[0] = most;
  state[1] = part[1] * take + state[1] * keep;
  const Floats keeps = splat(keep), takes = splat(take);
  for (int d = kRecordHead; d < record_floats(dim); d += kLanes) {
    const Floats before = load<Floats>(state + d) * keeps;
    store(state + d, fused(load<Floats>(part + d), takes, before));
  }
}

inline void finish(const float* state, int dim, float* out) {
  const Floats weight = splat(state[1]);
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes)
    store(out + d, load<Floats>(state + kRecordHead + d) / weight);
  for (; d < dim; ++d) out[d] = state[kRecordHead + d] / state[1];
}

// ---- the memory of an item ----

// The parts of a thread's scratch memory.
struct Scratch {
  uint32_t* queries;  // [kAttentionRows · group][query_stride], floats or pairs of bf16
  float* scores;      // [kQueries][kScoreStride]; later the weights
  float* records;     // [kQueries][record]
  uint8_t* clean;     // copies of two blocks of values
  float* states;      // [kAttentionRows · group][record]
  uint8_t* values;    // of a split, where they are a part of the keys
};

// What the thread reads next: the item, unless it is not known, and the blocks whose keys are still
// to be prefetched, the first one last.
struct Coming {
  const struct Item* item = nullptr;
  int first_split = 0;  // of the item
  int count = 0;
  size_t cells[kSplitBlocks];  // of each block, its first token's index over all heads' cells
};

struct Item {
  const Cache& cache;
  const AttentionShape& shape;
  const SequenceRows& sequence;
  int kv_head;
  int group;  // query heads of the KV head
  const float* const* q;  // of each row, its first query head's of this KV head
  Scratch scratch;
  Coming* coming;
};

// The positions of a split that one query, or some, see: [low, high) from the split's first.
struct Range {
  int low, high;
  bool any() const { return low < high; }
};

inline Range seen_by(const Item& item, int query, int split) {
  const int position = item.sequence.first_position + query / item.group;
  const int window = item.shape.window;
  const int first = window > 0 ? position - window + 1 : 0;
  int end = position + 1;
  if (item.shape.both_ways) {
    end = item.sequence.end;
    if (window > 0 && position + window < end) end = position + window;
  }
  const int low = first - split * kSplit, high = end - split * kSplit;
  return {low > 0 ? low : 0, high < kSplit ? high : kSplit};
}

// Cells of the blocks [first, end) of 16 positions of a split, by the sequence's table.
struct Blocks {
  int first, end;
  size_t cells[kSplitBlocks + 1];  // of each block, its first token's index over all heads' cells
};

inline Blocks find_blocks(const Item& item, Range range, int split) {
  Blocks blocks{range.low / kBlockTokens, (range.high + kBlockTokens - 1) / kBlockTokens, {}};
  const int size = item.cache.block_size;
  const int position = split * kSplit + blocks.first * kBlockTokens;
  const int32_t* block = item.sequence.table + position / size;
  int inside = position % size;
  for (int b = blocks.first; b < blocks.end; ++b) {
    blocks.cells[b] =
        *block * item.cache.block_cells + item.kv_head * item.cache.head_cells + inside;
    inside += kBlockTokens;
    if (inside < size) continue;
    inside = 0;
    ++block;
  }
  blocks.cells[blocks.end] = blocks.cells[blocks.end - 1];  // scores take two blocks at a time
  return blocks;
}

// ---- products ----

// Adds `steps` steps to sums of kVectors vectors for kRows queries. The other factors are in
// words, kRowStride from query to query and kStepStride from step to step.
template <CacheFormat kFormat, int kRowStride, int kStepStride, bool kHalf, int kRows, int kVectors>
inline __attribute__((always_inline)) void add_products(
    Floats (&sums)[kRows][kVectors], const typename Cells<kFormat>::Element* const* from, int width,
    int steps, const uint32_t* words) {
  for (int step = 0; step < steps; ++step) {
    decltype(Cells<kFormat>::template read<kHalf>(from[0], width)) cells[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      cells[v] = Cells<kFormat>::template read<kHalf>(from[v] + size_t(step) * 2 * width, width);
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sums[m][v] = times(sums[m][v], cells[v], words + m * kRowStride + step * kStepStride);
    }
  }
}

// Prefetches memory some time before it is needed.
template <bool kToWrite = false>
inline void ask_for_bytes(const void* from, size_t bytes) {
  const char* line = static_cast<const char*>(from);
  for (size_t at = 0; at < bytes; at += kAlign) __builtin_prefetch(line + at, kToWrite, 3);
}

// Prefetches 16 tokens' keys, or values, and their scales.
template <CacheFormat kFormat>
inline void ask_for_block(const Item& item, const void* cells, const float* scales, size_t cell) {
  using Element = typename Cells<kFormat>::Element;
  const int head_dim = item.cache.head_dim;
  ask_for_bytes(static_cast<const Element*>(cells) + cell * head_dim,
                sizeof(Element) * kBlockTokens * head_dim);
  if constexpr (kFormat == CacheFormat::Int8)
    ask_for_bytes(scales + cell, sizeof(float) * kBlockTokens);
}
template <CacheFormat kFormat>
inline void ask_for_keys(const Item& item, size_t cell) {
  ask_for_block<kFormat>(item, item.cache.keys, item.cache.key_scales, cell);
}
template <CacheFormat kFormat>
inline void ask_for_values(const Item& item, size_t cell) {
  ask_for_block<kFormat>(item, item.cache.values, item.cache.value_scales, cell);
}

// q · k for the group's queries and all blocks, to scores[query][position].
template <CacheFormat kFormat, int kRows>
void make_scores(const Item& item, const Blocks& blocks, const uint32_t* queries, bool first_use) {
  using Element = typename Cells<kFormat>::Element;
  const int head_dim = item.cache.head_dim;
  const Element* keys = static_cast<const Element*>(item.cache.keys);
  for (int b = blocks.first; b < blocks.end; b += kScoreBlocks) {
    if (first_use) {
      for (int ahead = b; ahead < b + kScoreBlocks && ahead < blocks.end; ++ahead) {
        if (!item.shape.latent) ask_for_values<kFormat>(item, blocks.cells[ahead]);
        if (ahead + 2 < blocks.end) ask_for_keys<kFormat>(item, blocks.cells[ahead + 2]);
      }
    }
    const Element* from[kScoreVectors];
    const float* scales[kScoreVectors];
    for (int v = 0; v < kScoreVectors; ++v) {
      const size_t cell = blocks.cells[b + v * kLanes / kBlockTokens];
      const int lane = v * kLanes % kBlockTokens;
      from[v] = keys + cell * head_dim + lane * Cells<kFormat>::kLaneElements;
      scales[v] = item.cache.key_scales + cell + lane;
    }
    Floats sums[kRows][kScoreVectors] = {};
    constexpr int kWords = Cells<kFormat>::kPairs ? 1 : 2;
    add_products<kFormat, query_stride(Cells<kFormat>::kPairs), kWords, false>(
        sums, from, kBlockTokens, head_dim / 2, queries);
    for (int m = 0; m < kRows; ++m) {
      float* scores = item.scratch.scores + m * kScoreStride + b * kBlockTokens;
      for (int v = 0; v < kScoreVectors; ++v) {
        if constexpr (kFormat == CacheFormat::Int8) sums[m][v] *= load<Floats>(scales[v]);
        store(scores + v * kLanes, sums[m][v]);
      }
    }
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
// are not scaled here. Vectors that it sees whole, and whose scores stay as they are, are only read.
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
      if constexpr (kFormat == CacheFormat::Int8) {
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
    add_products<kFormat, kScoreStride, kWords, kHalf>(sums, from, size, kSteps,
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
  if constexpr (kFormat == CacheFormat::Int8) return true;  // scales are checked apart
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

// Replaces block b by a copy that has zeros outside of the range.
template <CacheFormat kFormat, typename Element>
void clean_block(const Item& item, Range seen, int b, Element* copy, ValueBlocks<Element>& values) {
  const int size = value_dim(item.shape);
  for (int token = 0; token < kBlockTokens; ++token) {
    const int position = b * kBlockTokens + token;
    const bool is_seen = seen.low <= position && position < seen.high;
    for (int dim = 0; dim < size; ++dim) {
      const size_t at = value_at<kFormat>(token, dim, size);
      copy[at] = is_seen ? values.at[b][at] : Element{};
    }
  }
  values.at[b] = copy;
}

// ---- groups of queries ----

// Copies the queries to where products read them.
template <bool kPairs>
void copy_queries(const Item& item, int first, int count, uint32_t* to) {
  const int head_dim = item.cache.head_dim;
  for (int m = 0; m < count; ++m) {
    const int head = (first + m) % item.group;
    const float* q = item.q[(first + m) / item.group] + head * head_dim;
    uint32_t* words = to + m * query_stride(kPairs);
    if constexpr (kPairs) round_to_bf16(q, head_dim, reinterpret_cast<uint16_t*>(words));
    else __builtin_memcpy(words, q, sizeof(float) * head_dim);
  }
}

// Prefetches the rows of queries [first, end).
inline void ask_for_queries(const Item& item, int first, int end) {
  const int rows = (end - 1) / item.group + 1;
  for (int row = first / item.group; row < rows; ++row)
    ask_for_bytes(item.q[row], sizeof(float) * item.group * item.cache.head_dim);
}

// The values of block b of the split, where they are a part of the keys.
template <typename Element>
inline Element* turned(const Item& item, int b) {
  return reinterpret_cast<Element*>(item.scratch.values) + size_t(b) * kBlockTokens *
                                                               item.shape.latent;
}

// Queries first … first+kRows-1 of an item over one split, to scratch.records.
template <CacheFormat kFormat, int kRows>
void attend_group(const Item& item, const uint32_t* queries, int first, int split, bool first_use);

// The same, each query by itself: if some see a number that is not finite and others do not.
template <CacheFormat kFormat>
void attend_apart(const Item& item, const uint32_t* queries, int first, int count, int split) {
  const int record = record_floats(item.shape);
  for (int m = 0; m < count; ++m) {
    Item alone = item;
    alone.scratch.records += m * record;
    const uint32_t* query = queries + m * query_stride(Cells<kFormat>::kPairs);
    attend_group<kFormat, 1>(alone, query, first + m, split, false);
  }
}

template <CacheFormat kFormat, int kRows>
void attend_group(const Item& item, const uint32_t* queries, int first, int split,
                  bool first_use) {
  using Element = typename Cells<kFormat>::Element;
  const int size = value_dim(item.shape), record = record_floats(size);
  Range seen[kRows], all{kSplit, 0}, shared{0, kSplit};
  for (int m = 0; m < kRows; ++m) {
    seen[m] = seen_by(item, first + m, split);
    if (seen[m].any()) {
      all = {seen[m].low < all.low ? seen[m].low : all.low,
             seen[m].high > all.high ? seen[m].high : all.high};
    }
    shared = {seen[m].low > shared.low ? seen[m].low : shared.low,
              seen[m].high < shared.high ? seen[m].high : shared.high};
    item.scratch.records[m * record] = -kInfinity;
    item.scratch.records[m * record + 1] = 0.0f;
  }
  if (!all.any()) return;
  const Blocks blocks = find_blocks(item, all, split);
  ValueBlocks<Element> values;
  for (int b = blocks.first; b < blocks.end; ++b)
    values.at[b] = item.shape.latent ? turned<Element>(item, b)
                                     : static_cast<const Element*>(item.cache.values) +
                                           blocks.cells[b] * size;
  // Before and after the positions that all of them see, up to the ends of the blocks.
  const int begin = blocks.first * kBlockTokens, end = blocks.end * kBlockTokens;
  const int low = shared.low < end ? shared.low : end;
  const int high = shared.high > low ? shared.high : low;
  const bool clean =
      finite<kFormat>(item, values, begin, low) && finite<kFormat>(item, values, high, end);
  if (!clean && kRows > 1) return attend_apart<kFormat>(item, queries, first, kRows, split);
  if (!clean) {
    Element* copies = reinterpret_cast<Element*>(item.scratch.clean);
    clean_block<kFormat>(item, all, blocks.first, copies, values);
    if (blocks.end - 1 > blocks.first)
      clean_block<kFormat>(item, all, blocks.end - 1, copies + kBlockTokens * size, values);
  }
  make_scores<kFormat, kRows>(item, blocks, queries, first_use);
  // Each loop's queries are independent: their chains of operations overlap.
  const float scale = are_scaled(item.shape) ? 1.0f : item.shape.scale;
  float* const scores = item.scratch.scores;
  Floats largest[kRows];
  Columns sums[kRows];
  float most[kRows];
  for (int m = 0; m < kRows; ++m)
    largest[m] = mask_scores(item.shape, seen[m], distances_of(item, first + m, split),
                             scores + m * kScoreStride);
  for (int m = 0; m < kRows; ++m) most[m] = largest_of(largest[m]);
  for (int m = 0; m < kRows; ++m) {
    sums[m] = make_weights<kFormat>(item, blocks, seen[m], scale, most[m],
                                    scores + m * kScoreStride);
  }
  for (int m = 0; m < kRows; ++m) {
    float* head = item.scratch.records + m * record;
    head[0] = most[m] * scale;
    head[1] = sum_of(sums[m]);
  }
  sum_values<kFormat, kRows>(item, blocks, values);
}

template <CacheFormat kFormat, int kRows = kQueries>
inline void attend_some(const Item& item, const uint32_t* queries, int first, int count, int split,
                        bool first_use) {
  if (count == kRows) {
    attend_group<kFormat, kRows>(item, queries, first, split, first_use);
  } else if constexpr (kRows > 1) {
    attend_some<kFormat, kRows - 1>(item, queries, first, count, split, first_use);
  }
}

// ---- what is read next ----

// Finds the blocks that an item's rows see of a split.
inline void find_coming(const Item& item, int split, Coming& coming) {
  const int last = item.sequence.rows * item.group - 1;
  const Range seen{seen_by(item, 0, split).low, seen_by(item, last, split).high};
  if (!seen.any()) return;
  const Blocks blocks = find_blocks(item, seen, split);
  for (int b = blocks.end - 1; b >= blocks.first; --b)
    coming.cells[coming.count++] = blocks.cells[b];
}

// Turns the values of all blocks of a split that the item's rows see.
template <CacheFormat kFormat>
void turn_split(const Item& item, int split) {
  using Element = typename Cells<kFormat>::Element;
  const int last = item.sequence.rows * item.group - 1, latent = item.shape.latent;
  const Range seen{seen_by(item, 0, split).low, seen_by(item, last, split).high};
  if (!seen.any()) return;
  const Blocks blocks = find_blocks(item, seen, split);
  const auto* keys = static_cast<const Element*>(item.cache.keys);
  const int head_dim = item.cache.head_dim;
  for (int b = blocks.first; b < blocks.end; ++b) {
    if (b + 1 < blocks.end) ask_for_keys<kFormat>(item, blocks.cells[b + 1]);
    turn_values<kFormat>(keys + blocks.cells[b] * head_dim, head_dim - latent, latent,
                         turned<Element>(item, b));
  }
}

// ---- the table's functions ----

size_t scratch_parts(const AttentionShape& shape, uint8_t* base, Scratch* scratch) {
  const int group = shape.heads / shape.kv_heads, record = record_floats(shape);
  constexpr int kParts = 6;
  const size_t sizes[kParts] = {
      sizeof(uint32_t) * kAttentionRows * group * query_stride(false),
      sizeof(float) * kQueries * kScoreStride,
      sizeof(float) * kQueries * record,
      sizeof(float) * 2 * kBlockTokens * value_dim(shape),
      sizeof(float) * kAttentionRows * group * record,
      sizeof(float) * kSplit * shape.latent,
  };
  size_t offsets[kParts], end = 0;
  for (int i = 0; i < kParts; ++i) {
    offsets[i] = end;
    end += (sizes[i] + kAlign - 1) / kAlign * kAlign;
  }
  if (scratch) {
    *scratch = {reinterpret_cast<uint32_t*>(base + offsets[0]),
                reinterpret_cast<float*>(base + offsets[1]),
                reinterpret_cast<float*>(base + offsets[2]),
                base + offsets[3],
                reinterpret_cast<float*>(base + offsets[4]),
                base + offsets[5]};
  }
  return end;
}

size_t attention_scratch(const AttentionShape& shape) {
  return scratch_parts(shape, nullptr, nullptr);
}

// `partials` are each row's sums of the first split; each further split is `split_floats` on.
template <CacheFormat kFormat>
void attend_item(const Item& item, int rows, int first_split, int end_split,
                 float* const* partials, size_t split_floats) {
  const int size = value_dim(item.shape), record = record_floats(size);
  const int queries = rows * item.group;
  const int groups = (queries + kQueries - 1) / kQueries;
  const auto begins = [&](int g) { return queries * g / groups; };  // even: 13 queries are 6 and 7
  constexpr bool kPairs = Cells<kFormat>::kPairs;
  const auto words = [&](int g) { return item.scratch.queries + begins(g) * query_stride(kPairs); };
  // Few lines are asked for at once, each a group before it is needed: more would wait for others.
  ask_for_queries(item, 0, begins(1));
  for (int split = first_split; split < end_split; ++split) {
    Coming& coming = *item.coming;
    coming.count = 0;
    if (split + 1 < end_split) find_coming(item, split + 1, coming);
    else if (coming.item) find_coming(*coming.item, coming.first_split, coming);
    if (item.shape.latent) turn_split<kFormat>(item, split);
    for (int g = 0; g < groups; ++g) {
      const int first = begins(g), count = begins(g + 1) - first;
      if (split == first_split) {
        copy_queries<kPairs>(item, first, count, words(g));
        if (g + 1 < groups) ask_for_queries(item, begins(g + 1), begins(g + 2));
      }
      attend_some<kFormat>(item, words(g), first, count, split, g == 0);
      for (int m = 0; m < count; ++m) {
        const float* part = item.scratch.records + m * record;
        const size_t query = first + m;
        if (partials) {
          float* to = partials[query / item.group] + (split - first_split) * split_floats;
          __builtin_memcpy(to + query % item.group * record, part, record * sizeof(float));
        } else {
          fold(item.scratch.states + query * record, part, size);
        }
      }
    }
  }
}

void attend_rows(const Item& item, int rows, int first_split, int end_split,
                 float* const* partials, size_t split_floats) {
  switch (item.cache.format) {
    case CacheFormat::F32:
      return attend_item<CacheFormat::F32>(item, rows, first_split, end_split, partials,
                                           split_floats);
    case CacheFormat::BF16:
      return attend_item<CacheFormat::BF16>(item, rows, first_split, end_split, partials,
                                            split_floats);
    case CacheFormat::Int8:
      return attend_item<CacheFormat::Int8>(item, rows, first_split, end_split, partials,
                                            split_floats);
  }
}

void attention(const Cache& cache, const AttentionShape& shape, const AttentionPart& part,
               const AttentionPart* next, const float* q, size_t q_stride, float* out,
               size_t out_stride, float* partials, uint8_t* scratch) {
  const int group = shape.heads / shape.kv_heads, size = value_dim(shape);
  const int record = record_floats(size);
  const int rows = part.rows.rows, first_row = part.rows.first_row;
  const float* queries[kAttentionRows];
  float* parts[kAttentionRows];
  Coming coming;
  Item item{cache, shape, part.rows, part.kv_head, group, queries, {}, &coming};
  scratch_parts(shape, scratch, &item.scratch);
  const size_t column = size_t(part.kv_head) * group * shape.head_dim;
  for (int i = 0; i < rows; ++i) {
    queries[i] = q + (first_row + i) * q_stride + column;
    if (partials) parts[i] = partials + size_t(i) * group * record;
  }
  if (!partials) {
    for (int query = 0; query < rows * group; ++query) {
      const float* sink =
          shape.sinks ? shape.sinks + part.kv_head * group + query % group : nullptr;
      begin(item.scratch.states + size_t(query) * record, size, sink);
    }
  }
  const AttentionPart& then = next ? *next : part;
  const Item following{cache, shape, then.rows, then.kv_head, group, nullptr, {}, nullptr};
  if (next) {
    coming.item = &following;
    coming.first_split = next->first_split;
  }
  attend_rows(item, rows, part.first_split, part.end_split, partials ? parts : nullptr,
              size_t(rows) * group * record);
  if (partials) return;
  for (int query = 0; query < rows * group; ++query) {
    const int head = part.kv_head * group + query % group;
    float* to = out + size_t(first_row + query / group) * out_stride + head * size;
    finish(item.scratch.states + size_t(query) * record, size, to);
  }
}

void attention_together(const Cache& cache, const AttentionShape& shape, const TogetherRow* rows,
                        int count, int kv_head, int split, const int32_t* table,
                        uint8_t* scratch) {
  // A position after the split, which therefore sees all of it.
  const SequenceRows behind{0, count, (split + 1) * kSplit, table};
  const float* queries[kAttentionRows];
  float* parts[kAttentionRows];
  for (int i = 0; i < count; ++i) {
    queries[i] = rows[i].q;
    parts[i] = rows[i].partials;
  }
  Coming coming;
  Item item{cache, shape, behind, kv_head, shape.heads / shape.kv_heads, queries, {}, &coming};
  scratch_parts(shape, scratch, &item.scratch);
  attend_rows(item, count, split, split + 1, parts, 0);
}

size_t attention_partial_floats(const AttentionShape& shape, int rows) {
  return size_t(rows) * (shape.heads / shape.kv_heads) * record_floats(shape);
}

void merge_attention(const AttentionShape& shape, int first_row, int rows, int kv_head, int splits,
                     const float* partials, float* out, size_t out_stride, uint8_t* scratch) {
  const int group = shape.heads / shape.kv_heads, size = value_dim(shape);
  const int record = record_floats(size), queries = rows * group;
  float* state = reinterpret_cast<float*>(scratch);
  for (int query = 0; query < queries; ++query) {
    const int head = kv_head * group + query % group;
    begin(state, size, shape.sinks ? shape.sinks + head : nullptr);
    for (int split = 0; split < splits; ++split)
      fold(state, partials + (size_t(split) * queries + query) * record, size);
    finish(state, size, out + size_t(first_row + query / group) * out_stride + head * size);
  }
}

}  // namespace attend

void add_attention(KernelTable& table) {
  table.write_kv = attend::write_kv;
  table.attention_scratch = attend::attention_scratch;
  table.attention_partial_floats = attend::attention_partial_floats;
  table.attention = attend::attention;
  table.attention_together = attend::attention_together;
  table.merge_attention = attend::merge_attention;
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
