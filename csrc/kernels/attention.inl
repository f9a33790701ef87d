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

// ---- groups of queries ----

// The positions of a split that each query of a group sees, that some of them see, and that all do.
struct Sight {
  Range each[kMostQueries];
  Range some{kSplit, 0}, all{0, kSplit};
};

// Looks what queries see of a split, and begins their records, in which nothing is seen so far.
inline Sight look(const Item& item, int first, int count, int split) {
  const int record = record_floats(item.shape);
  Sight sight;
  Range &some = sight.some, &all = sight.all;
  for (int m = 0; m < count; ++m) {
    const Range seen = seen_by(item, first + m, split);
    sight.each[m] = seen;
    if (seen.any()) {
      some = {seen.low < some.low ? seen.low : some.low,
              seen.high > some.high ? seen.high : some.high};
    }
    all = {seen.low > all.low ? seen.low : all.low, seen.high < all.high ? seen.high : all.high};
    item.scratch.records[m * record] = -kInfinity;
    item.scratch.records[m * record + 1] = 0.0f;
  }
  return sight;
}

// Whether every number is finite that some queries of a group see and others do not: those before
// and after the positions that all of them see, up to the ends of the blocks.
template <CacheFormat kFormat, typename Element>
bool is_clean(const Item& item, const Blocks& blocks, const ValueBlocks<Element>& values,
              Range all) {
  const int begin = blocks.first * kBlockTokens, end = blocks.end * kBlockTokens;
  const int low = all.low < end ? all.low : end, high = all.high > low ? all.high : low;
  const auto are_finite = item.shape.latent ? finite_keys<kFormat> : finite<kFormat>;
  return are_finite(item, values, begin, low) && are_finite(item, values, high, end);
}

// Replaces the first and the last block by copies in which what is not seen is zero.
template <CacheFormat kFormat, typename Element>
void clean_ends(const Item& item, const Blocks& blocks, Range seen, ValueBlocks<Element>& values) {
  Element* copies = reinterpret_cast<Element*>(item.scratch.clean);
  clean_block<kFormat>(item, seen, blocks.first, copies, values);
  if (blocks.end - 1 > blocks.first)
    clean_block<kFormat>(item, seen, blocks.end - 1, copies + kBlockTokens * value_dim(item.shape),
                         values);
}

// Replaces the scores of a group's queries by weights; their maxima and sums go to the records.
template <CacheFormat kFormat>
void weigh(const Item& item, const Blocks& blocks, const Sight& sight, int first, int count,
           int split) {
  // Each loop's queries are independent: their chains of operations overlap.
  const float scale = are_scaled(item.shape) ? 1.0f : item.shape.scale;
  const int record = record_floats(item.shape);
  float* const scores = item.scratch.scores;
  Floats largest[kMostQueries];
  Columns sums[kMostQueries];
  float most[kMostQueries];
  for (int m = 0; m < count; ++m)
    largest[m] = mask_scores(item.shape, sight.each[m], distances_of(item, first + m, split),
                             scores + m * kScoreStride);
  for (int m = 0; m < count; ++m) most[m] = largest_of(largest[m]);
  for (int m = 0; m < count; ++m) {
    sums[m] = make_weights<kFormat>(item, blocks, sight.each[m], scale, most[m],
                                    scores + m * kScoreStride);
  }
  for (int m = 0; m < count; ++m) {
    float* head = item.scratch.records + m * record;
    head[0] = most[m] * scale;
    head[1] = sum_of(sums[m]);
  }
}

// Queries first … first+kRows-1 of an item over one split, to scratch.records. If some see a number
// that is not finite and others do not, each query is computed by itself.
template <CacheFormat kFormat, int kRows>
void attend_group(const Item& item, const uint32_t* queries, int first, int split,
                  bool first_use) {
  using Element = typename Cells<kFormat>::Element;
  const int size = value_dim(item.shape);
  const Sight sight = look(item, first, kRows, split);
  if (!sight.some.any()) return;
  const Blocks blocks = find_blocks(item, sight.some, split);
  ValueBlocks<Element> values;
  for (int b = blocks.first; b < blocks.end; ++b)
    values.at[b] = static_cast<const Element*>(item.cache.values) +
                   elements<kFormat>(blocks.cells[b] * size);
  if (!is_clean<kFormat>(item, blocks, values, sight.all)) {
    if constexpr (kRows > 1) {
      for (int m = 0; m < kRows; ++m) {
        Item alone = item;
        alone.scratch.records += m * record_floats(size);
        attend_group<kFormat, 1>(alone, queries + m * query_stride(Cells<kFormat>::kPairs),
                                 first + m, split, false);
      }
      return;
    }
    clean_ends<kFormat>(item, blocks, sight.some, values);
  }
  make_scores<kFormat, kRows>(item, blocks, queries, first_use);
  weigh<kFormat>(item, blocks, sight, first, kRows, split);
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

// The same, up to kLatentQueries of them, where values are a part of the keys.
template <CacheFormat kFormat>
void attend_latent(const Item& item, const uint32_t* queries, int first, int count, int split,
                   bool first_use) {
  using Element = typename Cells<kFormat>::Element;
  const Sight sight = look(item, first, count, split);
  if (!sight.some.any()) return;
  const Blocks blocks = find_blocks(item, sight.some, split);
  const int head_dim = item.cache.head_dim, before = head_dim - item.shape.latent;
  ValueBlocks<Element> values;
  for (int b = blocks.first; b < blocks.end; ++b)
    values.at[b] = static_cast<const Element*>(item.cache.keys) + blocks.cells[b] * head_dim +
                   before * kBlockTokens;
  if (!is_clean<kFormat>(item, blocks, values, sight.all)) {
    for (int m = 0; count > 1 && m < count; ++m) {
      Item alone = item;
      alone.scratch.records += m * record_floats(item.shape);
      attend_latent<kFormat>(alone, queries + m * query_stride(Cells<kFormat>::kPairs), first + m,
                             1, split, false);
    }
    if (count > 1) return;
    clean_ends<kFormat>(item, blocks, sight.some, values);
  }
  make_latent_scores<kFormat>(item, blocks, queries, count, first_use);
  weigh<kFormat>(item, blocks, sight, first, count, split);
  sum_latent<kFormat>(item, blocks, count, values);
}

// ---- the table's functions ----

size_t scratch_parts(const AttentionShape& shape, uint8_t* base, Scratch* scratch) {
  const int group = shape.heads / shape.kv_heads, record = record_floats(shape);
  constexpr int kParts = 7;
  const bool latent = shape.latent > 0;
  const size_t sizes[kParts] = {
      sizeof(uint32_t) * kAttentionRows * group * query_stride(false),
      sizeof(float) * kMostQueries * kScoreStride,
      sizeof(float) * kMostQueries * record,
      sizeof(float) * 2 * kBlockTokens * value_dim(shape),
      sizeof(float) * kAttentionRows * group * record,
      latent ? sizeof(uint32_t) * kScoreStride * kLatentQueries : 0,
      latent ? sizeof(float) * padded(shape.latent) * kLatentQueries : 0,
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
                reinterpret_cast<uint32_t*>(base + offsets[5]),
                reinterpret_cast<float*>(base + offsets[6])};
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
  const int most = item.shape.latent ? kLatentQueries : kQueries;
  const int groups = (queries + most - 1) / most;
  const auto begins = [&](int g) { return queries * g / groups; };  // even: 13 queries are 6 and 7
  constexpr bool kPairs = Cells<kFormat>::kPairs;
  const auto words = [&](int g) { return item.scratch.queries + begins(g) * query_stride(kPairs); };
  // Few lines are asked for at once, each a group before it is needed: more would wait for others.
  ask_for_queries(item, 0, begins(1));
  for (int split = first_split; split < end_split; ++split) {
    Coming& coming = *item.coming;
    coming.count = 0;
    coming.line = coming.end;
    if (split + 1 < end_split) find_coming(item, split + 1, coming);
    else if (coming.item) find_coming(*coming.item, coming.first_split, coming);
    for (int g = 0; g < groups; ++g) {
      const int first = begins(g), count = begins(g + 1) - first;
      if (split == first_split) {
        copy_queries<kFormat>(item, first, count, words(g));
        if (g + 1 < groups) ask_for_queries(item, begins(g + 1), begins(g + 2));
      }
      if constexpr (kFormat != CacheFormat::Int4) {
        if (item.shape.latent)  // whose later splits were asked for as those that come
          attend_latent<kFormat>(item, words(g), first, count, split,
                                 g == 0 && split == first_split);
      }
      if (!item.shape.latent) attend_some<kFormat>(item, words(g), first, count, split, g == 0);
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
    case CacheFormat::E4M3:
      return attend_item<CacheFormat::E4M3>(item, rows, first_split, end_split, partials,
                                            split_floats);
    case CacheFormat::E5M2:
      return attend_item<CacheFormat::E5M2>(item, rows, first_split, end_split, partials,
                                            split_floats);
    case CacheFormat::Int4:
      return attend_item<CacheFormat::Int4>(item, rows, first_split, end_split, partials,
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
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
