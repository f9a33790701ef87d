// What an item of attention has: its queries, the positions that they see, the records of its sums,
// and what is read next.
#pragma once

#include "kernels/attention_write.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

// Queries multiplied at once (kQueries), and of how many vectors the sums are (kScoreVectors,
// vectors_for): sizes.h of each tier.
constexpr int kScoreBlocks = kScoreVectors * kLanes / kBlockTokens;
// Queries multiplied at once where values are a part of the keys: kBlockVectors vectors of them.
constexpr int kLatentQueries = kBlockTokens;
constexpr int kMostQueries = kQueries > kLatentQueries ? kQueries : kLatentQueries;
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
  float* scores;      // [kMostQueries][kScoreStride]; later the weights
  float* records;     // [kMostQueries][record]
  uint8_t* clean;     // copies of two blocks of values
  float* states;      // [kAttentionRows · group][record]
  uint32_t* weights;  // turned: [step][kLatentQueries], where values are a part of the keys
  float* sums;        // turned: [value][kLatentQueries]
};

// What the thread reads next: the item, unless it is not known, and the blocks whose keys are still
// to be prefetched, the first one last.
struct Coming {
  const struct Item* item = nullptr;
  int first_split = 0;  // of the item
  int count = 0;
  size_t cells[kSplitBlocks];  // of each block, its first token's index over all heads' cells
  const char* line = nullptr;  // of the block last taken, the rest that is still to be prefetched
  const char* end = nullptr;
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
  const int first = first_seen(item.shape, position);
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
  ask_for_bytes(static_cast<const Element*>(cells) + elements<kFormat>(cell * head_dim),
                sizeof(Element) * elements<kFormat>(kBlockTokens * head_dim));
  if constexpr (has_scales(kFormat))
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

// Prefetches so many more lines of the keys that come, into the second cache: the first one has no
// room for them until they are needed.
template <CacheFormat kFormat>
inline void ask_for_lines(const Item& item, Coming& coming, int lines) {
  using Element = typename Cells<kFormat>::Element;
  const int head_dim = item.cache.head_dim;
  for (; lines > 0; --lines, coming.line += kAlign) {
    if (coming.line >= coming.end) {
      if (coming.count == 0) return;
      const size_t cell = coming.cells[--coming.count];
      const Element* keys = static_cast<const Element*>(item.cache.keys) + cell * head_dim;
      coming.line = reinterpret_cast<const char*>(keys);
      coming.end = reinterpret_cast<const char*>(keys + kBlockTokens * head_dim);
      if constexpr (has_scales(kFormat))
        ask_for_bytes(item.cache.key_scales + cell, sizeof(float) * kBlockTokens);
    }
    __builtin_prefetch(coming.line, 0, 2);
  }
}

// Copies the queries to where products read them.
template <CacheFormat kFormat>
void copy_queries(const Item& item, int first, int count, uint32_t* to) {
  constexpr bool kPairs = Cells<kFormat>::kPairs;
  const int head_dim = item.cache.head_dim;
  for (int m = 0; m < count; ++m) {
    const int head = (first + m) % item.group;
    const float* q = item.q[(first + m) / item.group] + head * head_dim;
    uint32_t* words = to + m * query_stride(kPairs);
    float mixed[kFormat == CacheFormat::Int4 ? kMostHeadDim : 1];
    if constexpr (kFormat == CacheFormat::Int4) {
      mix_query(q, head_dim, mixed);
      q = mixed;
    }
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

// Finds the blocks that an item's rows see of a split.
inline void find_coming(const Item& item, int split, Coming& coming) {
  const int last = item.sequence.rows * item.group - 1;
  const Range seen{seen_by(item, 0, split).low, seen_by(item, last, split).high};
  if (!seen.any()) return;
  const Blocks blocks = find_blocks(item, seen, split);
  for (int b = blocks.end - 1; b >= blocks.first; --b)
    coming.cells[coming.count++] = blocks.cells[b];
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
