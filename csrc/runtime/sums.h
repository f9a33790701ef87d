// The exchange of sums between ranks that have some inputs of a matrix each.
//
// A thread writes its rows of this rank's part, meets those that wait for them, and then reads the
// same rows of the parts of all ranks. There is room for two parts of each, which is used in turn:
// when one is written again, all have read it, for they have come to the meeting after that.
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

  explicit Sums(std::shared_ptr<Ranks> ranks);
  virtual ~Sums() = default;
  Sums(const Sums&) = delete;

  // The ranks on this machine.
  Ranks& ranks() const { return *ranks_; }

  // Throws std::runtime_error in a process that was forked from the one that is a rank.
  void check_process() const;

  // The number of parts of a sum: of all ranks, wherever they are.
  virtual int count() const = 0;
  // Rows of so many numbers that all threads of a rank together add up at once.
  virtual int rows_at_once(int width) const = 0;
  // Where a thread writes its rows of the next part, which begin behind so many numbers of it.
  virtual float* own(int thread, size_t before) = 0;
  // Waits until the same rows of every rank's part can be read, of which this thread has `own`
  // numbers and all together have `all`. Throws std::runtime_error if the group has ended.
  virtual void meet(int thread, size_t own, size_t all) = 0;
  // These rows of the part of a rank, after the meeting.
  virtual const float* of(int rank, int thread, size_t before) const = 0;

 protected:
  struct alignas(64) Turn {
    uint32_t count = 0;  // of the meetings of a thread
  };

  const std::shared_ptr<Ranks> ranks_;
  std::vector<Turn> turns_;

 private:
  const int process_;
};

// Sums of ranks on one machine: a thread with rows meets the threads of its number in the other
// ranks, so that a sum costs one meeting.
class SharedSums : public Sums {
 public:
  // Throws std::bad_alloc if the ranks have no memory left.
  explicit SharedSums(std::shared_ptr<Ranks> ranks);

  int count() const override { return ranks_->ranks(); }
  int rows_at_once(int width) const override { return ranks_->threads() * (kFloats / width); }
  float* own(int thread, size_t) override {
    return part(ranks_->rank(), thread, turns_[thread].count);
  }
  void meet(int thread, size_t own, size_t) override;
  const float* of(int rank, int thread, size_t) const override {
    return part(rank, thread, turns_[thread].count + 1);
  }

 private:
  float* part(int rank, int thread, uint32_t turn) const {
    const size_t number = (size_t(rank) * ranks_->threads() + thread) * 2 + turn % 2;
    return reinterpret_cast<float*>(parts_.data()) + number * kFloats;
  }

  Pages barriers_memory_, parts_;
  std::vector<std::shared_ptr<Barrier>> barriers_;  // of the threads of a number
};

}  // namespace octavo
