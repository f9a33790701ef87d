// A barrier for the threads of a team, with one or two levels.
#include "runtime/barrier.h"

#include "runtime/platform.h"

namespace octavo {

namespace {

// Within a step the other threads arrive within microseconds, unless the system has taken the
// processor away from one of them; then spinning would only keep it away for longer.
constexpr int kSpins = 2000;  // about 30 µs of pauses
constexpr int kYields = 200;  // then processors are offered to others, before sleeping

// Spins, then yields, then sleeps until `word` is no longer `value`.
void wait_while(std::atomic<uint32_t>& word, uint32_t value, std::atomic<uint32_t>& sleepers) {
  for (int turn = 0; turn < kSpins; ++turn) {
    if (word.load(std::memory_order_acquire) != value) return;
    pause_spinning();
  }
  for (int turn = 0; turn < kYields; ++turn) {
    if (word.load(std::memory_order_acquire) != value) return;
    std::this_thread::yield();
  }
  sleepers.fetch_add(1);
  while (word.load() == value) sleep_while(word, value);
  sleepers.fetch_sub(1);
}

}  // namespace

Barrier::Barrier(int threads) {
  const int groups = (threads + kOneLevel - 1) / kOneLevel;
  num_gates_ = groups > 1 ? groups + 1 : 1;
  gates_ = std::make_unique<Gate[]>(num_gates_);
  Gate& top = gates_[num_gates_ - 1];
  if (groups > 1) top.expected = groups;
  for (int thread = 0; thread < threads; ++thread) {
    // Even groups of neighbours: 17 threads are 9 and 8.
    Gate& gate = gates_[static_cast<int64_t>(thread) * groups / threads];
    ++gate.expected;
    if (groups > 1) gate.above = &top;
    gate_of_.push_back(&gate);
  }
}

void Barrier::wait(int thread) { pass(*gate_of_[thread]); }

void Barrier::pass(Gate& gate) {
  const uint32_t before = gate.phase.load(std::memory_order_acquire);
  if (abandoned_.load(std::memory_order_relaxed)) throw Abandoned();
  if (gate.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == gate.expected) {
    gate.arrived.store(0, std::memory_order_relaxed);
    if (gate.above) pass(*gate.above);
    // Not a store: it would hide that `abandon` has changed the phase, and with it `abandoned_`.
    gate.phase.fetch_add(1);
    if (gate.sleepers.load() > 0) wake_all(gate.phase);
    return;
  }
  wait_while(gate.phase, before, gate.sleepers);
  if (abandoned_.load(std::memory_order_relaxed)) throw Abandoned();
}

void Barrier::abandon() {
  abandoned_.store(true);
  for (int gate = 0; gate < num_gates_; ++gate) {
    gates_[gate].phase.fetch_add(1);
    wake_all(gates_[gate].phase);
  }
}

void Barrier::reset() {
  for (int gate = 0; gate < num_gates_; ++gate)
    gates_[gate].arrived.store(0, std::memory_order_relaxed);
  abandoned_.store(false, std::memory_order_relaxed);
}

}  // namespace octavo
