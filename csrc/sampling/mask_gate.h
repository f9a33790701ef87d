// The masks of a step's draws, which another thread computes while the forward pass runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "sampling/sampler.h"

namespace octavo {

class MaskGate {
 public:
  // Brings the masks, [samples + drafts, words].
  void open(std::vector<uint32_t>&& masks, size_t words) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      masks_ = std::move(masks);
      words_ = words;
      is_open_ = true;
    }
    opened_.notify_all();
  }

  // Waits for the masks, and moves them into the draws.
  void take(Draws& draws) {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
    draws.masks = std::move(masks_);
    draws.mask_words = words_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  std::vector<uint32_t> masks_;
  size_t words_ = 0;
  bool is_open_ = false;
};

}  // namespace octavo
