// The threads of a team in a program: the memory of each, and how work is divided among them.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/arena.h"

namespace octavo {

// A worker's even share [first, end) of `count`.
inline void share_of(int worker, int threads, int count, int& first, int& end) {
  first = static_cast<int>(static_cast<int64_t>(count) * worker / threads);
  end = static_cast<int>(static_cast<int64_t>(count) * (worker + 1) / threads);
}

// A run of pieces of work, [first, end).
struct Share {
  int first, end;
  int count() const { return end - first; }
};

// The memory of one thread.
struct Worker {
  uint8_t* kernel_scratch = nullptr;
  float* row = nullptr;       // as wide as any row that a thread normalises or rotates for itself
  uint8_t* prepared = nullptr;

  void reserve(size_t kernel_bytes, size_t row_floats, size_t prepared_bytes) {
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

// Divides `count` pieces of work: each thread takes its own even share first, in order, and then
// what is left of the shares of others (the system may have taken the processor away from one).
class Shares {
 public:
  explicit Shares(int threads)
      : own_(threads), next_(own_.data()), threads_(threads) {}
  // For `take_next` alone, by threads of several processes: over memory that all of them map.
  explicit Shares(Pages memory)
      : memory_(std::move(memory)), next_(reinterpret_cast<Next*>(memory_.data())), threads_(1) {}
  Shares(const Shares&) = delete;

  // Calls work(first, end). Needs no reset between runs: `epoch` counts them.
  template <typename Work>
  void take(int worker, int count, uint32_t epoch, Work work) {
    const int threads = threads_;
    for (int turn = 0; turn < threads; ++turn) {
      const int owner = (worker + turn) % threads;
      const int begin = begin_of(owner, count), end = begin_of(owner + 1, count);
      const int most = end - begin > kChunks ? (end - begin + kChunks - 1) / kChunks : 1;
      int first;
      while ((first = claim(next_[owner].value, epoch, end - begin, most)) >= 0)
        work(begin + first, begin + first + most < end ? begin + first + most : end);
    }
  }

  // Calls work(piece, coming) for each piece in order, in whichever thread is free. A thread takes
  // `run` neighbours at a time, and the next run before it begins this one: `coming` is then its
  // own next piece. If `run` is 0, it takes one piece at a time, and `coming` is -1.
  template <typename Work>
  void take_next(int count, uint32_t epoch, int run, Work work) {
    const bool ahead = run > 0;
    if (!ahead) run = 1;
    const auto take = [&] { return claim(next_[0].value, epoch, count, run); };
    int first = take();
    while (first >= 0) {
      const int end = first + run < count ? first + run : count;
      const int following = ahead ? take() : -1;
      for (int piece = first; piece < end; ++piece)
        work(piece, piece + 1 < end ? piece + 1 : following);
      first = ahead ? following : take();
    }
  }

 private:
  static constexpr int kChunks = 6;  // parts of a share; other threads may take the last ones

  struct alignas(64) Next {
    std::atomic<uint64_t> value{0};  // the run that it belongs to, and the next piece of the share
  };

  int begin_of(int worker, int count) const {
    return static_cast<int>(static_cast<int64_t>(count) * worker / threads_);
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

  std::vector<Next> own_;
  Pages memory_;
  Next* next_;
  const int threads_;
};

}  // namespace octavo
