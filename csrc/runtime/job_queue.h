// Runs jobs strictly in the order of their submission, in a thread of its own or in the thread that
// waits for the result.
//
// `wait` runs a job that nothing is queued behind in the caller's thread: handing it over would
// only cost time, since the caller waits anyway. As soon as another job is submitted before the
// first one has been collected, the queue's own thread runs them one after the other, so that each
// begins at once when the one before ends, whatever the caller does meanwhile. That thread starts
// when it is needed first.
//
// A job may leave a second part to be done when others have made what it needs. Meanwhile the next
// jobs begin; the second parts are done in the same order, each before a further job begins.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

namespace octavo {

class Job {
 public:
  virtual ~Job() = default;
  bool is_done() const { return done_.load(std::memory_order_acquire) != 0; }

 protected:
  virtual void run() = 0;
  // Whether `run` has left something to `go_on`, which waits for what others make meanwhile.
  virtual bool is_left() const { return false; }
  virtual bool can_go_on() const { return true; }  // without waiting
  virtual void go_on() {}

 private:
  friend class JobQueue;
  std::atomic<uint32_t> done_{0};
  bool is_collected_ = false;
  std::exception_ptr error_;
};

class JobQueue {
 public:
  JobQueue();
  // Finishes the running job, and forgets those that have not begun.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;

  // Throws std::runtime_error in a process that was forked from the one that has the thread.
  void submit(std::shared_ptr<Job> job);
  // Returns when the job has ended, and throws what it threw.
  void wait(Job& job);
  // Counts a job as collected, so that the next one may wait for its caller again.
  void forget(Job& job);
  // Looks again whether a job can go on: to be called, in any thread, when one can.
  void wake();

 private:
  struct Shared;

  bool is_forked() const;
  void check_process() const;
  void hand_over();

  const int process_;
  Shared* shared_;  // a forked process has a copy that nothing may touch, and never frees it
};

}  // namespace octavo
