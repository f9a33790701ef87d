// The KV cache: what all groups of layers keep, by blocks, in one pool of pages.
//
// A page is cut into blocks of one group at a time; groups have blocks of different sizes, or all
// of one. A block's cells of all layers lie together: [layer][head][keys, values][token]. So a
// sequence reads from few pages of memory, huge ones where the system has them, although every
// layer reads every block. Scales are in arrays beside, one for all groups of one size and shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/table.h"
#include "runtime/arena.h"
#include "runtime/ranks.h"

namespace octavo {

// The bytes of a token's key, or value, of one head, without its scale.
inline size_t cell_bytes(CacheFormat format, int head_dim) {
  if (format == CacheFormat::Int4) return head_dim / 2;
  const size_t element = format == CacheFormat::F32 ? 4 : format == CacheFormat::BF16 ? 2 : 1;
  return head_dim * element;
}

// The layers of a group, which keep the same.
struct CacheGroup {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t latent = 0;  // the last numbers of a key that are its value; 0: values are apart
  // A block has so many rows of head_dim floats, a state or a row for each token, and no cells.
  int32_t state = 0;
  int64_t block_bytes = 0;  // from a block to the next, in whole cells; pages are multiples of it
};

class KvCache {
 public:
  KvCache() = default;
  // The system gives a block's memory when it is written first, or `take` is called.
  // All ranks have it at the same place of their memory.
  KvCache(CacheFormat format, const std::vector<CacheGroup>& groups, int64_t pages,
          int64_t page_bytes, int block_size, Ranks* ranks = nullptr);

  const Cache& layer(int group, int layer) const { return groups_[group].layers[layer]; }
  // The state, or the rows of tokens, that a block of a layer has.
  float* state(int group, int layer, int64_t block) {
    const CacheGroup& shape = groups_[group].shape;
    return reinterpret_cast<float*>(pages_.data() + block * shape.block_bytes) +
           int64_t{layer} * shape.state * shape.head_dim;
  }
  int groups() const { return static_cast<int>(groups_.size()); }
  int64_t num_blocks(int group) const { return groups_[group].num_blocks; }
  int block_size() const { return block_size_; }
  void copy_block(int64_t source, int64_t destination, int64_t group);

  // A block as it is saved: its bytes, then the scales of its cells.
  size_t saved_bytes(int64_t group) const;
  std::vector<uint8_t> save_block(int64_t block, int64_t group) const;
  void load_block(int64_t block, int64_t group, const std::vector<uint8_t>& content);

  // Takes one of `parts` equal parts of all memory from the system, before any block is written.
  void take(int part, int parts);

 private:
  struct Group {
    CacheGroup shape;
    int64_t num_blocks = 0;
    int64_t block_cells = 0;  // from a block to the next
    float* scales = nullptr;  // of its cells, if they have any
    std::vector<Cache> layers;

    size_t scale_bytes() const { return scales ? block_cells * sizeof(float) : 0; }
  };

  void add_layers(CacheFormat format, Group& group);
  // A group that has such a block; throws std::invalid_argument if there is none.
  const Group& checked(int64_t group, int64_t block) const;

  Pages pages_;
  std::vector<Group> groups_;
  int block_size_ = 1;
};

}  // namespace octavo
