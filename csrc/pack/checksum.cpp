// A checksum of packed panels, as fast as memory is read.
#include "pack/checksum.h"

#include <algorithm>
#include <cstring>

namespace octavo {
namespace {

constexpr int kLanes = 8;  // independent sums, since each multiplication waits for the last one
constexpr size_t kAllLanes = kLanes * sizeof(uint64_t);
constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;  // odd, so that no step loses a bit

uint64_t mixed(uint64_t sum, uint64_t word) {
  const uint64_t product = (sum ^ word) * kFactor;
  return product ^ product >> 32;  // a product leaves the upper bits where they are
}

void add_block(const uint8_t* from, uint64_t* sums) {
  for (int lane = 0; lane < kLanes; lane++) {
    uint64_t word;
    std::memcpy(&word, from + sizeof word * lane, sizeof word);
    sums[lane] = mixed(sums[lane], word);
  }
}

}  // namespace

uint64_t checksum(const uint8_t* data, size_t bytes) {
  uint64_t sums[kLanes];
  for (int lane = 0; lane < kLanes; lane++) sums[lane] = kFactor * (lane + 1);
  size_t at = 0;
  for (; bytes - at >= kAllLanes; at += kAllLanes) add_block(data + at, sums);
  if (at < bytes) {
    uint8_t last[kAllLanes] = {};
    std::copy(data + at, data + bytes, last);
    add_block(last, sums);
  }
  uint64_t all = mixed(kFactor, bytes);
  for (const uint64_t sum : sums) all = mixed(all, sum);
  return all;
}

}  // namespace octavo
