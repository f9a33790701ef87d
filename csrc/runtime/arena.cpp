// Memory taken from the system in large pieces: aligned, zeroed, on huge pages where they help.
#include "runtime/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/table.h"

namespace octavo {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// Large enough that few matrices begin a new chunk; untouched pages of it cost nothing.
constexpr size_t kChunk = size_t{64} << 20;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Pages::Pages(size_t bytes, bool huge) {
  if (bytes == 0) return;
  // One huge page more than asked for, so that one can begin where huge pages begin.
  bytes_ = huge ? rounded(bytes, kHugePage) + kHugePage : rounded(bytes, 4096);
  void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    bytes_ = 0;
    throw std::bad_alloc();
  }
  data_ = static_cast<uint8_t*>(at);
  if (!huge) return;
  const size_t skip = rounded(reinterpret_cast<uintptr_t>(at), kHugePage) -
                      reinterpret_cast<uintptr_t>(at);
  if (skip) munmap(data_, skip);
  data_ += skip;
  bytes_ -= skip;
  madvise(data_, bytes_, MADV_HUGEPAGE);  // where it is refused, small pages serve as well
}

Pages::~Pages() {
  if (data_) munmap(data_, bytes_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
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

void release_file_pages(const uint8_t* data, size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t begin = rounded(reinterpret_cast<uintptr_t>(data), page);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace octavo
