// A team of threads that do one piece of work together, and meet at barriers inside it.
#include "runtime/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

// Inside a step the others come within microseconds, unless the system has taken one's processor
// away; then spinning would only keep it away for longer.
constexpr int kSpins = 2000;           // about 30 µs of pauses
constexpr int kYields = 200;           // then processors are offered to others, before sleeping
// Between steps: a server that has nothing to do must not burn a core.
constexpr std::chrono::microseconds kSpinBetween{30};
constexpr std::chrono::microseconds kYieldBetween{300};

// Thrown through the work of those whose meetings will not come about: somebody else has failed.
struct Abandoned {};

inline void pause() {
#ifdef OCTAVO_X86
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr,
          nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
          nullptr, 0);
}

// Spins, then yields, then sleeps until `word` is no longer `value`.
void wait_while(std::atomic<uint32_t>& word, uint32_t value, std::atomic<uint32_t>& sleepers) {
  for (int turn = 0; turn < kSpins; ++turn) {
    if (word.load(std::memory_order_acquire) != value) return;
    pause();
  }
  for (int turn = 0; turn < kYields; ++turn) {
    if (word.load(std::memory_order_acquire) != value) return;
    sched_yield();
  }
  sleepers.fetch_add(1);
  while (word.load() == value) sleep_while(word, value);
  sleepers.fetch_sub(1);
}

void pin(std::thread& thread, int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  pthread_setaffinity_np(thread.native_handle(), sizeof one, &one);  // a wish: failing is no harm
}

}  // namespace

std::vector<int> physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {0};
  std::set<std::string> seen;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed)) continue;
    const std::string path = "/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                             "/topology/thread_siblings_list";
    std::string siblings;
    std::ifstream(path) >> siblings;
    if (siblings.empty()) siblings = "alone " + std::to_string(processor);
    if (seen.insert(siblings).second) cores.push_back(processor);
  }
  return cores.empty() ? std::vector<int>{0} : cores;
}

Team::Team(int size, bool pinned) : size_(size < 1 ? 1 : size), process_(getpid()) {
  const std::vector<int> cores = physical_cores();
  for (int worker = 1; worker < size_; ++worker) {
    try {
      threads_.emplace_back([this, worker] { serve(worker); });
    } catch (const std::system_error& error) {
      end();  // those that have started
      throw std::runtime_error("the system gives no more than " + std::to_string(worker) + " of " +
                               std::to_string(size_) + " threads (" + error.what() +
                               "): ask for fewer");
    }
    if (pinned && worker < static_cast<int>(cores.size())) pin(threads_.back(), cores[worker]);
  }
}

Team::~Team() {
  // A forked process has the handles without the threads: waiting for these would never end.
  if (getpid() != process_) new std::vector<std::thread>(std::move(threads_));
  else end();
}

void Team::end() {
  ending_ = true;
  started_.fetch_add(1);
  wake_all(started_);
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
  const std::lock_guard<std::mutex> mine(turn_);
  if (size_ == 1) return work(0);
  if (getpid() != process_)
    throw std::runtime_error("the native engine's threads are not in a process forked from the one "
                             "that loaded it: load it in the process that uses it");
  work_ = &work;
  finished_.store(0, std::memory_order_relaxed);
  started_.fetch_add(1);
  if (asleep_.load() > 0) wake_all(started_);
  attempt(0);
  // The end is a meeting as well, but nobody waits for it except the caller.
  const uint32_t others = size_ - 1;
  for (int turn = 0; finished_.load(std::memory_order_acquire) != others; ++turn)
    turn < kSpins ? pause() : static_cast<void>(sched_yield());
  if (failed_.load(std::memory_order_relaxed)) rethrow();
}

// An exception must not leave a thread, which would end the process, nor the caller's own work
// while the others are at it.
void Team::attempt(int worker) {
  try {
    (*work_)(worker);
  } catch (const Abandoned&) {
  } catch (...) {
    const std::lock_guard<std::mutex> mine(failure_);
    if (!error_) error_ = std::current_exception();
    failed_.store(true);
    phase_.fetch_add(1);  // whoever waits for a meeting leaves it
    wake_all(phase_);
  }
}

void Team::rethrow() {  // all are back
  arrived_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(error_, nullptr));
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
  const auto began = Clock::now();
  for (uint32_t turn = 0;; ++turn) {
    const uint32_t now = started_.load(std::memory_order_acquire);
    if (now != seen) return seen + 1;
    pause();
    if (turn % 64 != 0) continue;
    const auto waited = Clock::now() - began;
    if (waited < kSpinBetween) continue;
    if (waited > kYieldBetween) break;
    sched_yield();
  }
  asleep_.fetch_add(1);
  while (started_.load() == seen) sleep_while(started_, seen);
  asleep_.fetch_sub(1);
  return seen + 1;
}

void Team::meet() {
  if (size_ == 1) return;
  const uint32_t before = phase_.load(std::memory_order_acquire);
  if (failed_.load(std::memory_order_relaxed)) throw Abandoned();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(before + 1);
    if (sleeping_at_barrier_.load() > 0) wake_all(phase_);
    return;
  }
  wait_while(phase_, before, sleeping_at_barrier_);
  if (failed_.load(std::memory_order_relaxed)) throw Abandoned();
}

}  // namespace octavo
