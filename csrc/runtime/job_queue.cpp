// Runs jobs strictly in the order of their submission.
#include "runtime/job_queue.h"

#include <stdexcept>
#include <system_error>
#include <utility>

#include "runtime/platform.h"

namespace octavo {

struct JobQueue::Shared {
  std::mutex turn;
  std::deque<std::shared_ptr<Job>> queued;
  std::deque<std::shared_ptr<Job>> left;  // their second parts are to be done
  std::atomic<bool> is_running{false};  // some thread runs a job
  int uncollected = 0;
  bool is_ending = false;
  std::thread thread;
  std::atomic<bool> has_thread{false};
  std::atomic<uint32_t> signals{0};  // the thread sleeps on it

  // Runs jobs until none can go on, or until `last` is done, for which it waits; the lock is held
  // except meanwhile.
  void run_jobs(std::unique_lock<std::mutex>& lock, const Job* last);
  bool has_work() const { return !queued.empty() || (!left.empty() && left[0]->can_go_on()); }
  void serve();
};

void JobQueue::Shared::run_jobs(std::unique_lock<std::mutex>& lock, const Job* last) {
  is_running = true;
  while (!is_ending && (last ? !last->is_done() : has_work())) {
    const bool goes_on = !left.empty() && (queued.empty() || left[0]->can_go_on());
    std::deque<std::shared_ptr<Job>>& from = goes_on ? left : queued;
    const std::shared_ptr<Job> job = std::move(from.front());
    from.pop_front();
    lock.unlock();
    bool is_left = false;
    try {
      if (goes_on) {
        job->go_on();
      } else {
        job->run();
        is_left = job->is_left();
      }
    } catch (...) {
      job->error_ = std::current_exception();
    }
    if (!is_left) {
      job->done_.store(1, std::memory_order_release);
      wake_all(job->done_);
    }
    lock.lock();
    if (is_left) left.push_back(job);
  }
  is_running = false;
}

void JobQueue::Shared::serve() {
  std::unique_lock<std::mutex> lock(turn);
  while (!is_ending) {
    const uint32_t seen = signals.load();
    if (has_work() && !is_running) {
      run_jobs(lock, nullptr);
      continue;
    }
    lock.unlock();
    sleep_while(signals, seen);
    lock.lock();
  }
}

JobQueue::JobQueue() : process_(process_id()), shared_(new Shared) {}

JobQueue::~JobQueue() {
  if (is_forked()) return;
  if (shared_->has_thread) {
    {
      const std::lock_guard<std::mutex> lock(shared_->turn);
      shared_->is_ending = true;
    }
    wake();
    shared_->thread.join();
  }
  delete shared_;
}

// Whether this process has only a copy of the queue, without its thread.
bool JobQueue::is_forked() const {
  return process_id() != process_ && (shared_->has_thread || shared_->is_running);
}

void JobQueue::check_process() const {
  if (is_forked())
    throw std::runtime_error("the native engine's threads do not exist in a process that was "
                             "forked from the one that loaded it: load it in the process that uses "
                             "it");
}

void JobQueue::wake() {
  shared_->signals.fetch_add(1);
  wake_all(shared_->signals);
}

void JobQueue::submit(std::shared_ptr<Job> job) {
  check_process();
  const std::lock_guard<std::mutex> lock(shared_->turn);
  shared_->queued.push_back(std::move(job));
  if (++shared_->uncollected > 1) hand_over();
}

// Lets the queue's own thread run what is queued. Without that thread, `wait` runs all jobs.
void JobQueue::hand_over() {
  if (!shared_->has_thread) {
    try {
      shared_->thread = std::thread([shared = shared_] { shared->serve(); });
      shared_->has_thread = true;
    } catch (const std::system_error&) {
      return;
    }
  }
  if (!shared_->is_running) wake();
}

void JobQueue::wait(Job& job) {
  while (!job.is_done()) {
    check_process();
    {
      std::unique_lock<std::mutex> lock(shared_->turn);
      const bool is_last = !shared_->queued.empty() && shared_->queued.back().get() == &job;
      const bool is_alone = !shared_->has_thread;
      if (!shared_->is_running && (is_last || is_alone)) {
        shared_->run_jobs(lock, &job);
        if (shared_->has_work()) wake();  // others have come meanwhile
        continue;
      }
    }
    sleep_while(job.done_, 0);
  }
  forget(job);
  if (job.error_) std::rethrow_exception(job.error_);
}

void JobQueue::forget(Job& job) {
  if (is_forked()) return;
  const std::lock_guard<std::mutex> lock(shared_->turn);
  if (!std::exchange(job.is_collected_, true)) --shared_->uncollected;
}

}  // namespace octavo
