// What every thread of a team has for itself, and how they share out a product's panels.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/arena.h"

namespace octavo {

// Rows up to which every thread prepares a product's input for itself: a few rows cost less than
// one more meeting.
constexpr int kPrivateRows = 8;
constexpr int kPrivateFloats = 8192;

struct Worker {
  uint8_t* kernel_scratch = nullptr;
  float* row = nullptr;       // as wide as any row that is normalised or turned on its own
  uint8_t* prepared = nullptr;

  void make_room(size_t kernel_bytes, size_t row_floats, size_t prepared_bytes) {
    const auto aligned = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    const size_t kernel = aligned(kernel_bytes), row_bytes = aligned(row_floats * 4);
    const size_t total = kernel + row_bytes + aligned(prepared_bytes);
    if (total > memory.bytes()) memory = Pages(total + total / 2, false);
    kernel_scratch = memory.data();
    row = reinterpret_cast<float*>(kernel_scratch + kernel);
    prepared = kernel_scratch + kernel + row_bytes;
  }

  Pages memory;
};

// Hands out `count` pieces of work: to each thread first its own even share, in order, then what
// others have left of theirs (the system may have taken a processor away from one of them).
class Shares {
 public:
  explicit Shares(int threads) : next_(threads) {}

  // Calls work(first, end). Nothing has to be set back between runs: `epoch` counts them.
  template <typename Work>
  void take(int worker, int count, uint32_t epoch, Work work) {
    const int threads = static_cast<int>(next_.size());
    for (int turn = 0; turn < threads; ++turn) {
      const int owner = (worker + turn) % threads;
      const int begin = begin_of(owner, count), end = begin_of(owner + 1, count);
      const int most = end - begin > kChunks ? (end - begin + kChunks - 1) / kChunks : 1;
      int first;
      while ((first = claim(next_[owner].value, epoch, end - begin, most)) >= 0)
        work(begin + first, begin + first + most < end ? begin + first + most : end);
    }
  }

  // Calls work(piece), for each piece in order, whoever is free.
  template <typename Work>
  void take_next(int count, uint32_t epoch, Work work) {
    int piece;
    while ((piece = claim(next_[0].value, epoch, count, 1)) >= 0) work(piece);
  }

 private:
  static constexpr int kChunks = 6;  // parts of a share, the last of which others may take

  struct alignas(64) Next {
    std::atomic<uint64_t> value{0};  // the run it counts for, and the next piece of the share
  };

  int begin_of(int worker, int count) const {
    return static_cast<int>(static_cast<int64_t>(count) * worker /
                            static_cast<int64_t>(next_.size()));
  }

  static int claim(std::atomic<uint64_t>& next, uint32_t epoch, int count, int most) {
    uint64_t seen = next.load(std::memory_order_relaxed);
    for (;;) {
      const uint32_t at = seen >> 32 == epoch ? static_cast<uint32_t>(seen) : 0;
      if (at >= static_cast<uint32_t>(count)) return -1;
      const uint64_t then = static_cast<uint64_t>(epoch) << 32 | (at + most);
      if (next.compare_exchange_weak(seen, then, std::memory_order_relaxed)) return at;
    }
  }

  std::vector<Next> next_;
};

}  // namespace octavo
