// The KV cache: keys and values of all layers, by blocks.
//
// A block's cells of all layers lie together: [block][layer][head][keys, values][token], and then
// the same once more for scales. So a sequence reads from few pages of memory, huge ones where the
// system has them, although every layer reads every block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/table.h"
#include "runtime/arena.h"

namespace octavo {

// The bytes of a token's key, or value, of one head, without its scale.
inline size_t cell_bytes(CacheFormat format, int head_dim) {
  const size_t element = format == CacheFormat::F32 ? 4 : format == CacheFormat::BF16 ? 2 : 1;
  return head_dim * element;
}

class KvCache {
 public:
  KvCache() = default;
  // The system gives a block's memory when it is written first, or `take` is called.
  KvCache(CacheFormat format, int layers, int64_t blocks, int block_size, int kv_heads,
          int head_dim);

  const Cache& layer(int layer) const { return layers_[layer]; }
  int64_t num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  void copy_block(int64_t source, int64_t destination);

  // Takes one of `parts` equal parts of all memory from the system, before any block is written.
  void take(int part, int parts);

 private:
  Pages pages_;
  std::vector<Cache> layers_;
  float* scales_ = nullptr;
  size_t block_bytes_ = 0;    // of a block's cells of all layers
  int64_t block_scales_ = 0;  // the number of their scales, if cells have any
  int64_t num_blocks_ = 0;
  int block_size_ = 1;
};

}  // namespace octavo
