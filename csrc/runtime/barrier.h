// A barrier for the threads of a team: none passes it before all have arrived.
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

namespace octavo {

class Barrier {
 public:
  static constexpr int kOneLevel = 16;

  // Thrown by `wait` once the barrier is abandoned.
  struct Abandoned {};

  explicit Barrier(int threads);
  Barrier(const Barrier&) = delete;

  // Waits for all the other threads: spins, then yields, then sleeps.
  void wait(int thread);

  // Makes every thread that waits, now or later, throw Abandoned, because one of them has failed
  // and will not arrive.
  void abandon();

  // Makes an abandoned barrier usable again. Call only when no thread uses it.
  void reset();

 private:
  // Each member has its own cache line: the writes of those that arrive must not disturb those that
  // watch the phase.
  struct Gate {
    alignas(64) std::atomic<uint32_t> arrived{0};
    alignas(64) std::atomic<uint32_t> phase{0};  // counts how often it was opened
    alignas(64) std::atomic<uint32_t> sleepers{0};
    uint32_t expected = 0;  // how many arrivals open it
    Gate* above = nullptr;  // the gate at which the last to arrive here represents the others
  };

  void pass(Gate& gate);

  std::unique_ptr<Gate[]> gates_;
  int num_gates_ = 1;
  std::vector<Gate*> gate_of_;  // of each thread
  alignas(64) std::atomic<bool> abandoned_{false};
};

}  // namespace octavo
