// A team of threads that do one piece of work together, with barriers inside it.
#include "runtime/team.h"

#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/platform.h"
#include "runtime/waiting.h"

namespace octavo {

Team::Team(int size, bool pinned, std::shared_ptr<Ranks> ranks)
    : size_(size < 1 ? 1 : size),
      process_(process_id()),
      ranks_(std::move(ranks)),
      own_barrier_(size_),
      barrier_(ranks_ ? ranks_->barrier() : own_barrier_) {
  if (ranks_ && ranks_->threads() != size_)
    throw std::invalid_argument("all ranks must have so many threads as their group says");
  const std::vector<int> cores = physical_cores();
  for (int worker = 1; worker < size_; ++worker) {
    try {
      threads_.emplace_back([this, worker] { serve(worker); });
    } catch (const std::system_error& error) {
      end();  // stops those that have started
      throw std::runtime_error("the system allows only " + std::to_string(worker) + " of " +
                               std::to_string(size_) + " threads (" + error.what() +
                               "): ask for fewer");
    }
    if (pinned && worker < static_cast<int>(cores.size()))
      pin_thread(threads_.back(), cores[worker]);
  }
}

Team::~Team() {
  // A forked process has the handles without the threads: joining them would never return.
  if (process_id() != process_) new std::vector<std::thread>(std::move(threads_));
  else end();
}

void Team::end() {
  ending_ = true;
  started_.fetch_add(1);
  wake_all(started_);
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
  // First of all, since a forked process may have a copy of a mutex that is locked for ever.
  if (all() > 1 && process_id() != process_)
    throw std::runtime_error("the native engine's threads and ranks do not exist in a process that "
                             "was forked from the one that loaded it: load it in the process that "
                             "uses it");
  const std::lock_guard<std::mutex> lock(running_);
  if (all() == 1) return work(0);
  work_ = &work;
  finished_.store(0, std::memory_order_relaxed);
  started_.fetch_add(1);
  if (asleep_.load() > 0) wake_all(started_);
  attempt(0);
  // Only the caller waits for the end, so this is no barrier.
  const uint32_t others = size_ - 1;
  for (int turn = 0; finished_.load(std::memory_order_acquire) != others; ++turn)
    turn < kSpins ? pause_spinning() : std::this_thread::yield();
  if (ranks_ && barrier_.is_abandoned() && !error_) ranks_->raise();
  if (!error_) return;
  if (!ranks_) barrier_.reset();
  std::rethrow_exception(std::exchange(error_, nullptr));
}

// Runs the work. An exception must not leave a thread, which would end the process, nor the
// caller's own work while the other threads are still running.
void Team::attempt(int worker) {
  try {
    (*work_)(worker);
  } catch (const Barrier::Abandoned&) {
  } catch (...) {
    const std::lock_guard<std::mutex> lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
    barrier_.abandon();
  }
}

void Team::serve(int worker) {
  uint32_t seen = 0;
  for (;;) {
    seen = wait_for_work(seen);
    if (ending_) return;
    attempt(worker);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

uint32_t Team::wait_for_work(uint32_t seen) {
  wait_between_steps(started_, asleep_, Sleepers::OfProcess,
                     [seen](uint32_t word) { return word != seen; });
  return seen + 1;
}

}  // namespace octavo
