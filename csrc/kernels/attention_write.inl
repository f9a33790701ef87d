// Writes keys and values into the cache, in the layout in which attention reads them (table.h).
#pragma once

#include <type_traits>

#include "kernels/attention_codes.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

// The element of a block's token and dimension.
template <CacheFormat kFormat>
inline size_t value_at(int token, int dim, int head_dim) {
  if (kFormat == CacheFormat::F32) return static_cast<size_t>(token) * head_dim + dim;
  return static_cast<size_t>(token / 2 * head_dim + dim) * 2 + token % 2;
}

// The element of a block's token and dimension of latent rows.
template <CacheFormat kFormat>
inline size_t latent_at(int token, int dim) {
  if (kFormat == CacheFormat::F32) return static_cast<size_t>(dim) * kBlockTokens + token;
  return (static_cast<size_t>(dim / 2) * kBlockTokens + token / 2 * 2 + dim % 2) * 2 + token % 2;
}

// A row's number before it is written: Int4's are put into bytes then.
template <CacheFormat kFormat>
using Number = std::conditional_t<has_scales(kFormat), int8_t, typename Cells<kFormat>::Element>;

inline uint8_t two_codes(int8_t low, int8_t high) {
  return static_cast<uint8_t>((low & 15) | high << 4);
}

// Writes one head's key or value of a token into its block. If cells are pairs, two dimensions of a
// key are moved at once.
template <CacheFormat kFormat, typename Element>
inline void put_key(Element* block, int token, const Number<kFormat>* x, int head_dim) {
  if constexpr (kFormat == CacheFormat::F32) {
    for (int d = 0; d < head_dim; ++d) block[d * kBlockTokens + token] = x[d];
  } else if constexpr (kFormat == CacheFormat::Int4) {
    for (int d = 0; d < head_dim; d += 2)
      block[d / 2 * kBlockTokens + token] = two_codes(x[d], x[d + 1]);
  } else {
    for (int d = 0; d < head_dim; d += 2)
      __builtin_memcpy(block + d * kBlockTokens + 2 * token, x + d, 2 * sizeof(Element));
  }
}
template <CacheFormat kFormat, typename Element>
inline void put_latent(Element* block, int token, const Number<kFormat>* x, int head_dim) {
  for (int d = 0; d < head_dim; ++d) block[latent_at<kFormat>(token, d)] = x[d];
}
template <CacheFormat kFormat, typename Element>
inline void put_value(Element* block, int token, const Number<kFormat>* x, int head_dim) {
  if constexpr (kFormat == CacheFormat::Int4) {
    Element* pairs = block + static_cast<size_t>(token / 2) * head_dim;
    for (int d = 0; d < head_dim; ++d)
      pairs[d] = token % 2 ? two_codes(static_cast<int8_t>(pairs[d]), x[d])
                           : two_codes(x[d], static_cast<int8_t>(pairs[d] >> 4));
    return;
  }
  for (int d = 0; d < head_dim; ++d) block[value_at<kFormat>(token, d, head_dim)] = x[d];
}
// Writes the values of two tokens that are a pair, whole words at a time. For a single token only
// its own half may be written: the other half may be there already.
template <CacheFormat kFormat, typename Element>
inline void put_values(Element* block, int token, const Number<kFormat>* x,
                       const Number<kFormat>* next, int head_dim) {
  Element* pairs = block + elements<kFormat>(static_cast<size_t>(token) * head_dim);
  for (int d = 0; d < head_dim; ++d) {
    if constexpr (kFormat == CacheFormat::Int4) {
      pairs[d] = two_codes(x[d], next[d]);
    } else {
      const Element pair[2] = {x[d], next[d]};
      __builtin_memcpy(pairs + 2 * d, pair, sizeof pair);
    }
  }
}

// Converts a head's row to the numbers of the cells; returns their scale, if they have one.
template <CacheFormat kFormat>
inline float convert(const float* x, int head_dim, Number<kFormat>* row) {
  if constexpr (has_scales(kFormat)) return quantise<kFormat>(x, head_dim, row);
  if constexpr (kFormat == CacheFormat::BF16) round_to_bf16(x, head_dim, row);
  if constexpr (kFormat == CacheFormat::F32) __builtin_memcpy(row, x, sizeof(float) * head_dim);
  return 1.0f;
}

// Writes the rows of `count` tokens, a pair or a single one; the first is at `inside` of its block.
template <CacheFormat kFormat>
void write_tokens(const Cache& cache, const float* k, const float* v, size_t stride, size_t block,
                  int inside, int count) {
  using Element = typename Cells<kFormat>::Element;
  const int head_dim = cache.head_dim, token = inside % kBlockTokens;
  Number<kFormat> rows[2][kMostHeadDim];
  for (int h = 0; h < cache.kv_heads; ++h) {
    const size_t cell = block * cache.block_cells + h * cache.head_cells + inside;
    const size_t first = elements<kFormat>((cell - token) * head_dim);
    Element* keys = static_cast<Element*>(cache.keys) + first;
    Element* values = static_cast<Element*>(cache.values) + first;
    for (int i = 0; i < count; ++i) {
      const size_t from = i * stride + size_t(h) * head_dim;
      const float* key = k + from;
      float mixed[kFormat == CacheFormat::Int4 ? kMostHeadDim : 1];
      if constexpr (kFormat == CacheFormat::Int4) {
        mix(key, head_dim, 1.0f, mixed);
        key = mixed;
      }
      [[maybe_unused]] const float scale = convert<kFormat>(key, head_dim, rows[i]);
      if constexpr (has_scales(kFormat)) cache.key_scales[cell + i] = scale;
      if (cache.latent) put_latent<kFormat>(keys, token + i, rows[i], head_dim);
      else put_key<kFormat>(keys, token + i, rows[i], head_dim);
    }
    if (cache.latent) continue;  // the value is a part of the key
    for (int i = 0; i < count; ++i) {
      const size_t from = i * stride + size_t(h) * head_dim;
      [[maybe_unused]] const float scale = convert<kFormat>(v + from, head_dim, rows[i]);
      if constexpr (has_scales(kFormat)) cache.value_scales[cell + i] = scale;
    }
    if (count == 2) put_values<kFormat>(values, token, rows[0], rows[1], head_dim);
    else put_value<kFormat>(values, token, rows[0], head_dim);
  }
}

template <CacheFormat kFormat>
void write_rows(const Cache& cache, const float* k, const float* v, size_t stride,
                const SequenceRows& sequence) {
  for (int r = 0; r < sequence.rows;) {
    const int position = sequence.first_position + r;
    const size_t block = static_cast<size_t>(sequence.table[position / cache.block_size]);
    const size_t from = size_t(sequence.first_row + r) * stride;
    const bool pair = kFormat != CacheFormat::F32 && position % 2 == 0 && r + 1 < sequence.rows;
    write_tokens<kFormat>(cache, k + from, v + from, stride, block, position % cache.block_size,
                          pair ? 2 : 1);
    r += pair ? 2 : 1;
  }
}

void write_kv(const Cache& cache, const float* k, const float* v, size_t stride,
              const SequenceRows& sequence) {
  switch (cache.format) {
    case CacheFormat::F32: return write_rows<CacheFormat::F32>(cache, k, v, stride, sequence);
    case CacheFormat::BF16: return write_rows<CacheFormat::BF16>(cache, k, v, stride, sequence);
    case CacheFormat::Int8: return write_rows<CacheFormat::Int8>(cache, k, v, stride, sequence);
    case CacheFormat::E4M3: return write_rows<CacheFormat::E4M3>(cache, k, v, stride, sequence);
    case CacheFormat::E5M2: return write_rows<CacheFormat::E5M2>(cache, k, v, stride, sequence);
    case CacheFormat::Int4: return write_rows<CacheFormat::Int4>(cache, k, v, stride, sequence);
  }
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
