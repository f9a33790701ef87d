// The KV cache: what all groups of layers keep, by blocks.
#include "program/kv_cache.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace octavo {

KvCache::KvCache(CacheFormat format, const std::vector<CacheGroup>& groups, int64_t pages,
                 int64_t page_bytes, int block_size, Ranks* ranks)
    : block_size_(block_size) {
  const auto is_alike = [](const CacheGroup& one, const CacheGroup& other) {
    return one.kv_heads == other.kv_heads && one.head_dim == other.head_dim &&
           one.latent == other.latent && one.state == other.state &&
           one.block_bytes == other.block_bytes;
  };
  const size_t bytes = (pages * page_bytes + kAlign - 1) / kAlign * kAlign;
  std::vector<size_t> first_scales;  // of each group
  size_t scales = 0;
  for (const CacheGroup& shape : groups) {
    if (shape.latent && format == CacheFormat::Int4)
      throw std::invalid_argument("latent rows cannot be kept as Int4");
    const CacheFormat kept = shape.state ? CacheFormat::F32 : format;
    const auto cell = static_cast<int64_t>(cell_bytes(kept, shape.head_dim));
    if (shape.block_bytes <= 0 || shape.block_bytes % cell || page_bytes % shape.block_bytes)
      throw std::invalid_argument("pages must be whole blocks, and blocks whole cells");
    Group group{shape, pages * (page_bytes / shape.block_bytes), shape.block_bytes / cell, nullptr,
                {}};
    size_t like = 0;
    while (like < groups_.size() && !is_alike(groups_[like].shape, shape)) ++like;
    first_scales.push_back(like < groups_.size() ? first_scales[like] : scales);
    if (like == groups_.size() && !shape.state) scales += group.num_blocks * group.block_cells;
    groups_.push_back(std::move(group));
  }
  const bool is_scaled = has_scales(format);
  pages_ = pages_for(ranks, bytes + (is_scaled ? scales * sizeof(float) : 0), true);
  for (size_t index = 0; index < groups_.size(); ++index) {
    Group& group = groups_[index];
    if (group.shape.state) continue;
    if (is_scaled)
      group.scales = reinterpret_cast<float*>(pages_.data() + bytes) + first_scales[index];
    add_layers(format, group);
  }
}

void KvCache::add_layers(CacheFormat format, Group& group) {
  const bool is_latent = group.shape.latent > 0;
  const int64_t head_cells = is_latent ? block_size_ : 2 * block_size_;
  const size_t cell = cell_bytes(format, group.shape.head_dim);
  for (int layer = 0; layer < group.shape.layers; ++layer) {
    const int64_t keys = layer * head_cells * group.shape.kv_heads;
    const int64_t values = is_latent ? keys : keys + block_size_;
    Cache cache{};
    cache.keys = pages_.data() + keys * cell;
    cache.values = pages_.data() + values * cell;
    if (group.scales) {
      cache.key_scales = group.scales + keys;
      cache.value_scales = group.scales + values;
    }
    cache.format = format;
    cache.block_size = block_size_;
    cache.kv_heads = group.shape.kv_heads;
    cache.head_dim = group.shape.head_dim;
    cache.latent = group.shape.latent;
    cache.head_cells = is_latent ? 0 : head_cells;
    cache.block_cells = group.block_cells;
    group.layers.push_back(cache);
  }
}

void KvCache::copy_block(int64_t source, int64_t destination, int64_t index) {
  if (index < 0 || index >= groups())
    throw std::invalid_argument("cannot copy a block of group " + std::to_string(index) +
                                ": the cache has " + std::to_string(groups()));
  const Group& group = groups_[index];
  const int64_t count = group.num_blocks, size = group.shape.block_bytes;
  if (source < 0 || destination < 0 || source >= count || destination >= count)
    throw std::invalid_argument("cannot copy block " + std::to_string(source) + " to " +
                                std::to_string(destination) + ": the cache has " +
                                std::to_string(count));
  if (source == destination) return;
  std::memcpy(pages_.data() + destination * size, pages_.data() + source * size, size);
  if (group.scales)
    std::memcpy(group.scales + destination * group.block_cells,
                group.scales + source * group.block_cells, group.block_cells * sizeof(float));
}

const KvCache::Group& KvCache::checked(int64_t group, int64_t block) const {
  if (group < 0 || group >= groups() || block < 0 || block >= groups_[group].num_blocks)
    throw std::invalid_argument("the cache has no block " + std::to_string(block) + " of group " +
                                std::to_string(group));
  return groups_[group];
}

size_t KvCache::saved_bytes(int64_t group) const {
  const Group& of = checked(group, 0);
  return of.shape.block_bytes + of.scale_bytes();
}

std::vector<uint8_t> KvCache::save_block(int64_t block, int64_t group) const {
  const Group& of = checked(group, block);
  const size_t bytes = of.shape.block_bytes;
  std::vector<uint8_t> content(bytes + of.scale_bytes());
  std::memcpy(content.data(), pages_.data() + block * bytes, bytes);
  if (of.scales)
    std::memcpy(content.data() + bytes, of.scales + block * of.block_cells, of.scale_bytes());
  return content;
}

void KvCache::load_block(int64_t block, int64_t group, const std::vector<uint8_t>& content) {
  const Group& of = checked(group, block);
  const size_t bytes = of.shape.block_bytes;
  if (content.size() != bytes + of.scale_bytes())
    throw std::invalid_argument("a block has " + std::to_string(bytes + of.scale_bytes()) +
                                " bytes; " + std::to_string(content.size()) +
                                " cannot be loaded");
  std::memcpy(pages_.data() + block * bytes, content.data(), bytes);
  if (of.scales)
    std::memcpy(of.scales + block * of.block_cells, content.data() + bytes, of.scale_bytes());
}

void KvCache::take(int part, int parts) {
  constexpr size_t kPage = 4096;  // the smallest of any system
  const size_t pages = pages_.bytes() / kPage;
  for (size_t page = pages * part / parts; page < pages * (part + 1) / parts; ++page)
    pages_.data()[page * kPage] = 0;
}

}  // namespace octavo
