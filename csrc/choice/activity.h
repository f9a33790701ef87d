// Whether a program computes steps, for work that waits until it does not.
#pragma once

#include <atomic>
#include <chrono>

namespace octavo {

class Activity {
 public:
  using Clock = std::chrono::steady_clock;

  // Counts one step for as long as it lives.
  class Step {
   public:
    explicit Step(Activity& activity) : activity_(activity) { ++activity_.running_; }
    ~Step() {
      activity_.ended_.store(Clock::now());
      --activity_.running_;
    }
    Step(const Step&) = delete;

   private:
    Activity& activity_;
  };

  // True if no step runs, and none has ended within `quiet`.
  bool is_idle(Clock::duration quiet) const {
    return running_.load() == 0 && Clock::now() - ended_.load() >= quiet;
  }

 private:
  std::atomic<int> running_{0};
  std::atomic<Clock::time_point> ended_{Clock::now()};
};

}  // namespace octavo
