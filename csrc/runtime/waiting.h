// How threads and ranks wait for work between steps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "runtime/platform.h"

namespace octavo {

// Waits until `is_over(word)`, and returns the word: spins, then yields, and then sleeps, since a
// server that has nothing to do must not keep a core busy. One that sleeps counts itself among the
// sleepers, so that the word need not be woken for others.
template <typename IsOver>
uint32_t wait_between_steps(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers,
                            Sleepers whose, IsOver is_over) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kSpin{30}, kYield{300};
  const auto began = Clock::now();
  for (uint32_t turn = 0;; ++turn) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (is_over(now)) return now;
    pause_spinning();
    if (turn % 64 != 0) continue;
    const auto waited = Clock::now() - began;
    if (waited < kSpin) continue;
    if (waited > kYield) break;
    std::this_thread::yield();
  }
  sleepers.fetch_add(1);
  uint32_t now;
  while (!is_over(now = word.load())) sleep_while(word, now, whose);
  sleepers.fetch_sub(1);
  return now;
}

}  // namespace octavo
