// A team of threads that do one piece of work together, with barriers inside it. Where ranks share
// the work, each process has a team, and barriers are for the threads of all.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/barrier.h"
#include "runtime/ranks.h"
#include "runtime/workers.h"

namespace octavo {

class Team {
 public:
  // The caller of `run` is worker 0, so one thread less is started. If `pinned`, each of the others
  // stays on a core of its own.
  Team(int size, bool pinned, std::shared_ptr<Ranks> ranks = nullptr);
  ~Team();
  Team(const Team&) = delete;

  int size() const { return size_; }

  // The threads of all ranks, and a worker's number among them.
  int all() const { return ranks_ ? ranks_->ranks() * size_ : size_; }
  int number(int worker) const { return ranks_ ? ranks_->rank() * size_ + worker : worker; }

  // The share of this process of the panels of a matrix: it has the weights of no others.
  Share share(int panels) const {
    Share mine{0, panels};
    if (ranks_) share_of(ranks_->rank(), ranks_->ranks(), panels, mine.first, mine.end);
    return mine;
  }

  // nullptr: this process is alone.
  Ranks* ranks() const { return ranks_.get(); }

  // Calls work(worker) in every thread and returns when all have finished. Concurrent callers run
  // one after the other. If a worker throws, the others stop at their next barrier, and the first
  // exception is rethrown here when all have stopped. Throws in a process that was forked from the
  // one that has the threads, because there they do not exist. If a rank has ended, throws why.
  void run(const std::function<void(int)>& work);

  // Waits until all workers of the `run` have arrived, those of other ranks too.
  void barrier(int worker) {
    if (all() > 1) barrier_.wait(number(worker));
  }

 private:
  void serve(int worker);
  void attempt(int worker);
  uint32_t wait_for_work(uint32_t seen);
  void end();

  const int size_;
  const int process_;  // the one that has the threads
  std::mutex running_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  bool ending_ = false;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  const std::shared_ptr<Ranks> ranks_;
  Barrier own_barrier_;
  Barrier& barrier_;

  // Each on its own cache line: the writes of many must not disturb those that watch another.
  alignas(64) std::atomic<uint32_t> started_{0};  // counts runs; threads sleep on it
  alignas(64) std::atomic<uint32_t> asleep_{0};
  alignas(64) std::atomic<uint32_t> finished_{0};
};

}  // namespace octavo
