// A team of threads that do one piece of work together, and meet at barriers inside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

// The cores this process may run on, one logical processor of each.
std::vector<int> physical_cores();

class Team {
 public:
  // The caller of `run` is worker 0, so one thread less is started. Where `pinned`, the others
  // stay each on a core of their own.
  Team(int size, bool pinned);
  ~Team();
  Team(const Team&) = delete;

  int size() const { return size_; }

  // Calls work(worker) in every thread, and returns when all have. Callers take turns. Throws in a
  // process that was forked from the one that has the threads: nobody would come. Where a worker
  // throws, the others leave at their next meeting, and what it threw (the first, if several did)
  // is thrown here when all are back.
  void run(const std::function<void(int)>& work);

  // All workers of a `run` meet here.
  void meet();

 private:
  void serve(int worker);
  void attempt(int worker);
  void rethrow();
  uint32_t wait_for_work(uint32_t seen);
  void end();

  const int size_;
  const int process_;  // which has the threads
  std::mutex turn_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  bool ending_ = false;
  std::mutex failure_;
  std::exception_ptr error_;

  // Each on a cache line of its own: what many write does not disturb what many watch.
  alignas(64) std::atomic<uint32_t> started_{0};  // counts runs; threads sleep on it
  alignas(64) std::atomic<uint32_t> asleep_{0};
  alignas(64) std::atomic<uint32_t> finished_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};  // counts meetings; late ones sleep on it
  std::atomic<bool> failed_{false};  // a worker has thrown: beside what those who meet look at
  alignas(64) std::atomic<uint32_t> sleeping_at_barrier_{0};
};

}  // namespace octavo
