// A barrier for the threads of a team: none passes it before all have arrived. They may be threads
// of several processes, each with a barrier of its own over the same memory.
//
// Up to kOneLevel threads count in one place. More of them would all write one cache line in turn,
// so they are divided into groups of neighbours (threads that are pinned in order share caches with
// their neighbours). A group counts for itself; the last thread to arrive in it represents the
// group at a second level, and lets the group continue when all groups have arrived.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/platform.h"

namespace octavo {

inline constexpr int kSpins = 2000;  // about 30 µs of pauses

class Barrier {
 public:
  static constexpr int kOneLevel = 16;

  // Thrown by `wait` once the barrier is abandoned.
  struct Abandoned {};

  explicit Barrier(int threads);
  // Over memory that other processes map too: bytes_for(threads), zeroed and aligned to a line.
  Barrier(int threads, uint8_t* memory);
  Barrier(const Barrier&) = delete;

  static size_t bytes_for(int threads);

  // Waits for all the other threads: spins, then yields, then sleeps.
  void wait(int thread);

  // Makes every thread that waits, now or later, throw Abandoned, because one of them has failed
  // and will not arrive.
  void abandon();

  bool is_abandoned() const { return state_->abandoned.load() != 0; }

  // Makes an abandoned barrier usable again. Call only when no thread uses it.
  void reset();

 private:
  // Each member has its own cache line: the writes of those that arrive must not disturb those that
  // watch the phase.
  struct Gate {
    alignas(64) std::atomic<uint32_t> arrived{0};
    alignas(64) std::atomic<uint32_t> phase{0};  // counts how often it was opened
    alignas(64) std::atomic<uint32_t> sleepers{0};
  };
  struct State {
    alignas(64) std::atomic<uint32_t> abandoned{0};
  };
  // A gate as this process knows it.
  struct Place {
    Gate* gate = nullptr;
    uint32_t expected = 0;   // how many arrivals open it
    Place* above = nullptr;  // that at which the last to arrive here represents the others
  };

  void pass(const Place& place);

  const Sleepers whose_;
  std::unique_ptr<uint8_t[]> own_;  // the memory of the threads of one process
  State* state_;
  std::vector<Place> places_;
  std::vector<const Place*> place_of_;  // of each thread
};

}  // namespace octavo
