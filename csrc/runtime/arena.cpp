// Memory taken from the system in large pieces: aligned, zeroed, in huge pages where they help.
#include "runtime/arena.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/table.h"
#include "runtime/platform.h"

namespace octavo {

namespace {

// Large enough that few matrices begin a new chunk; its untouched pages take no memory.
constexpr size_t kChunk = size_t{64} << 20;

}  // namespace

Pages::Pages(size_t bytes, bool huge) {
  if (bytes == 0) return;
  // One huge page more than asked for, so that the memory can begin where a huge page begins.
  bytes_ = huge ? rounded(bytes, kHugePage) + kHugePage : rounded(bytes, kSmallPage);
  data_ = map_pages(bytes_);
  if (!data_) {
    bytes_ = 0;
    throw std::bad_alloc();
  }
  if (!huge) return;
  const uintptr_t at = reinterpret_cast<uintptr_t>(data_);
  const size_t skip = rounded(at, kHugePage) - at, rest = kHugePage - skip;
  if (skip) unmap_pages(data_, skip);
  data_ += skip;
  bytes_ -= kHugePage;
  unmap_pages(data_ + bytes_, rest);
  prefer_huge_pages(data_, bytes_);
}

Pages::~Pages() {
  if (data_ && !owner_) unmap_pages(data_, bytes_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      owner_(std::move(other.owner_)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(owner_, other.owner_);
  return *this;
}

uint8_t* Arena::take(size_t bytes) {
  bytes = rounded(std::max<size_t>(bytes, 1), kAlign);
  if (chunks_.empty() || used_ + bytes > chunks_.back().bytes()) {
    chunks_.emplace_back(std::max(bytes, kChunk), huge_);
    used_ = 0;
  }
  uint8_t* at = chunks_.back().data() + used_;
  used_ += bytes;
  taken_ += bytes;
  return at;
}

}  // namespace octavo
