// The KV cache: keys and values of all layers, by blocks.
#include "program/kv_cache.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace octavo {

KvCache::KvCache(CacheFormat format, int layers, int64_t blocks, int block_size, int kv_heads,
                 int head_dim)
    : num_blocks_(blocks), block_size_(block_size) {
  const int64_t array_cells = int64_t{kv_heads} * block_size;  // of a block's keys, of a layer
  const int64_t block_cells = 2 * layers * array_cells;
  const size_t cell = cell_bytes(format, head_dim);
  const size_t bytes = (blocks * block_cells * cell + kAlign - 1) / kAlign * kAlign;
  const size_t scale_bytes =
      format == CacheFormat::Int8 ? blocks * block_cells * sizeof(float) : 0;
  pages_ = Pages(bytes + scale_bytes, true);
  block_bytes_ = block_cells * cell;
  block_scales_ = scale_bytes ? block_cells : 0;
  scales_ = reinterpret_cast<float*>(pages_.data() + bytes);
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t keys = 2 * layer * array_cells, values = keys + block_size;
    Cache cache{};
    cache.keys = pages_.data() + keys * cell;
    cache.values = pages_.data() + values * cell;
    if (scale_bytes) {
      cache.key_scales = scales_ + keys;
      cache.value_scales = scales_ + values;
    }
    cache.format = format;
    cache.block_size = block_size;
    cache.kv_heads = kv_heads;
    cache.head_dim = head_dim;
    cache.head_cells = 2 * block_size;
    cache.block_cells = block_cells;
    layers_.push_back(cache);
  }
}

void KvCache::copy_block(int64_t source, int64_t destination) {
  if (source < 0 || destination < 0 || source >= num_blocks_ || destination >= num_blocks_)
    throw std::invalid_argument("cannot copy block " + std::to_string(source) + " to " +
                                std::to_string(destination) + ": the cache has " +
                                std::to_string(num_blocks_));
  if (source == destination) return;
  uint8_t* cells = pages_.data();
  std::memcpy(cells + destination * block_bytes_, cells + source * block_bytes_, block_bytes_);
  if (block_scales_)
    std::memcpy(scales_ + destination * block_scales_, scales_ + source * block_scales_,
                block_scales_ * sizeof(float));
}

void KvCache::take(int part, int parts) {
  constexpr size_t kPage = 4096;  // the smallest of any system
  const size_t pages = pages_.bytes() / kPage;
  for (size_t page = pages * part / parts; page < pages * (part + 1) / parts; ++page)
    pages_.data()[page * kPage] = 0;
}

}  // namespace octavo
