// The plainest attention over the cache's layout, fp32 and bf16: one query head after the other.
#include <cmath>
#include <vector>

#include "kernels/math.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

struct Place {
  size_t key, value;
};

Place place_of(const Cache& c, const int32_t* table, int head, int position, int dim) {
  const size_t block = table[position / c.block_size];
  const int token = position % c.block_size, tile = token / 16, in = token % 16;
  const size_t base = (block * c.kv_heads + head) * c.block_size * c.head_dim +
                      static_cast<size_t>(tile) * 16 * c.head_dim;
  return {base + static_cast<size_t>(dim / 2) * 32 + in * 2 + dim % 2,
          base + static_cast<size_t>(in / 2) * c.head_dim * 2 + dim * 2 + in % 2};
}

float cached(const void* array, CacheFormat format, size_t at) {
  if (format == CacheFormat::F32) return static_cast<const float*>(array)[at];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(array)[at]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void keep(void* array, CacheFormat format, size_t at, float value) {
  if (format == CacheFormat::F32) {
    static_cast<float*>(array)[at] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7fff + ((bits >> 16) & 1);
  static_cast<uint16_t*>(array)[at] = bits >> 16;
}

void write_kv(const Cache& cache, const float* k, const float* v, size_t stride,
              const SequenceRows& sequence) {
  for (int row = 0; row < sequence.rows; ++row)
    for (int head = 0; head < cache.kv_heads; ++head)
      for (int dim = 0; dim < cache.head_dim; ++dim) {
        const Place at = place_of(cache, sequence.table, head, sequence.first_position + row, dim);
        const size_t from = (sequence.first_row + row) * stride + head * cache.head_dim + dim;
        keep(cache.keys, cache.format, at.key, k[from]);
        keep(cache.values, cache.format, at.value, v[from]);
      }
}

size_t attention_scratch(const AttentionShape&) { return 0; }

// One row and head of one split: maximum, sum of shares, and the shares' sum of values.
void attend_one(const Cache& cache, const AttentionShape& shape, const SequenceRows& sequence,
                int position, int kv_head, int split, const float* q, bool first, float sink,
                float* state) {
  float maximum = -HUGE_VALF, total = 0.0f;
  float* sums = state + 2;
  for (int dim = 0; dim < shape.head_dim; ++dim) sums[dim] = 0.0f;
  if (first && shape.sinks) {
    maximum = sink;
    total = 1.0f;
  }
  const int begin = split * kSplit;
  const int end = position + 1 < begin + kSplit ? position + 1 : begin + kSplit;
  for (int at = begin; at < end; ++at) {
    if (shape.window && at <= position - shape.window) continue;
    float score = 0.0f;
    for (int dim = 0; dim < shape.head_dim; ++dim)
      score += q[dim] * cached(cache.keys, cache.format,
                               place_of(cache, sequence.table, kv_head, at, dim).key);
    score *= shape.scale;
    if (shape.softcap != 0.0f)
      score = hyperbolic_tangent(splat(score / shape.softcap))[0] * shape.softcap;
    const float larger = score > maximum ? score : maximum;
    const float keep = maximum == -HUGE_VALF ? 0.0f : exponential(splat(maximum - larger))[0];
    const float share = exponential(splat(score - larger))[0];
    total = total * keep + share;
    for (int dim = 0; dim < shape.head_dim; ++dim)
      sums[dim] = sums[dim] * keep +
                  share * cached(cache.values, cache.format,
                                 place_of(cache, sequence.table, kv_head, at, dim).value);
    maximum = larger;
  }
  state[0] = maximum;
  state[1] = total;
}

int first_split(const AttentionShape& shape, int position) {
  return shape.window && position >= shape.window ? (position - shape.window + 1) / kSplit : 0;
}

void attention(const Cache& cache, const AttentionShape& shape, const SequenceRows& sequence,
               int first, int rows, int kv_head, int split, const float* q, size_t q_stride,
               float* out, size_t out_stride, float* partials, uint8_t*) {
  const int group = shape.heads / shape.kv_heads;
  const int first_position = sequence.first_position + first;
  const bool whole =
      first_split(shape, first_position) == (first_position + rows - 1) / kSplit;
  std::vector<float> state(2 + shape.head_dim);
  for (int row = 0; row < rows; ++row)
    for (int member = 0; member < group; ++member) {
      const int head = kv_head * group + member;
      const size_t at = sequence.first_row + first + row;
      float* mine = whole ? state.data()
                          : partials + static_cast<size_t>(row * group + member) * state.size();
      attend_one(cache, shape, sequence, first_position + row, kv_head, split,
                 q + at * q_stride + static_cast<size_t>(head) * shape.head_dim,
                 split == first_split(shape, first_position + row),
                 shape.sinks ? shape.sinks[head] : 0.0f, mine);
      if (!whole) continue;
      float* to = out + at * out_stride + static_cast<size_t>(head) * shape.head_dim;
      for (int dim = 0; dim < shape.head_dim; ++dim) to[dim] = mine[2 + dim] / mine[1];
    }
}

// `out` begins at the item's first row.
void merge_attention(const AttentionShape& shape, int rows, int kv_head, int splits,
                     const float* partials, float* out, size_t out_stride) {
  const int group = shape.heads / shape.kv_heads, width = 2 + shape.head_dim;
  for (int row = 0; row < rows; ++row)
    for (int member = 0; member < group; ++member) {
      float maximum = -HUGE_VALF, total = 0.0f;
      float* to = out + row * out_stride + (kv_head * group + member) * shape.head_dim;
      for (int dim = 0; dim < shape.head_dim; ++dim) to[dim] = 0.0f;
      for (int split = 0; split < splits; ++split) {
        const float* part =
            partials + static_cast<size_t>((split * rows + row) * group + member) * width;
        if (part[0] == -HUGE_VALF) continue;
        const float larger = part[0] > maximum ? part[0] : maximum;
        const float keep = maximum == -HUGE_VALF ? 0.0f : exponential(splat(maximum - larger))[0];
        const float share = exponential(splat(part[0] - larger))[0];
        total = total * keep + part[1] * share;
        for (int dim = 0; dim < shape.head_dim; ++dim)
          to[dim] = to[dim] * keep + part[2 + dim] * share;
        maximum = larger;
      }
      for (int dim = 0; dim < shape.head_dim; ++dim) to[dim] /= total;
    }
}

void add_naive_attention(KernelTable& table) {
  table.write_kv = write_kv;
  table.attention_scratch = attention_scratch;
  table.attention = attention;
  table.merge_attention = merge_attention;
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
