// The exchange of sums between ranks that have some inputs of a matrix each.
//
// A thread writes its part of a sum to memory that all ranks map, meets the threads of its number
// in the other ranks, and then reads the parts of all. Each thread has room for two parts, which it
// uses in turn: when it writes one again, all have read it, for they have come to the meeting after
// that. So a sum costs one meeting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/arena.h"
#include "runtime/barrier.h"
#include "runtime/ranks.h"

namespace octavo {

class Sums {
 public:
  // Of a part. Rows that are wider cannot be added up; more of them are added up in several parts,
  // which so stay in near caches.
  static constexpr int kFloats = 1 << 15;

  // Throws std::bad_alloc if the ranks have no memory left.
  explicit Sums(std::shared_ptr<Ranks> ranks);
  Sums(const Sums&) = delete;

  Ranks& ranks() const { return *ranks_; }

  // Throws std::runtime_error in a process that was forked from the one that is a rank.
  void check_process() const;

  // Where a thread writes its next part.
  float* own(int thread) { return part(ranks_->rank(), thread, turns_[thread].count); }
  // Waits until the same thread of every rank has written its part. Throws std::runtime_error if
  // the group has ended.
  void meet(int thread);
  // The part of a rank, after the meeting.
  const float* of(int rank, int thread) const {
    return part(rank, thread, turns_[thread].count + 1);
  }

 private:
  struct alignas(64) Turn {
    uint32_t count = 0;  // of the meetings of a thread
  };

  float* part(int rank, int thread, uint32_t turn) const {
    const size_t number = (size_t(rank) * ranks_->threads() + thread) * 2 + turn % 2;
    return reinterpret_cast<float*>(parts_.data()) + number * kFloats;
  }

  const std::shared_ptr<Ranks> ranks_;
  const int process_;
  Pages barriers_memory_, parts_;
  std::vector<std::shared_ptr<Barrier>> barriers_;  // of the threads of a number
  std::vector<Turn> turns_;
};

}  // namespace octavo
