// A barrier for the threads of a team, with one or two levels.
#include "runtime/barrier.h"

#include "runtime/platform.h"

namespace octavo {

namespace {

// Within a step the other threads arrive within microseconds, unless the system has taken the
// processor away from one of them; then spinning would only keep it away for longer.
constexpr int kYields = 200;  // then processors are offered to others, before sleeping

// Spins, then yields, then sleeps until `word` is no longer `value`.
void wait_while(std::atomic<uint32_t>& word, uint32_t value, std::atomic<uint32_t>& sleepers,
                Sleepers whose) {
  for (int turn = 0; turn < kSpins; ++turn) {
    if (word.load(std::memory_order_acquire) != value) return;
    pause_spinning();
  }
  for (int turn = 0; turn < kYields; ++turn) {
    if (word.load(std::memory_order_acquire) != value) return;
    std::this_thread::yield();
  }
  sleepers.fetch_add(1);
  while (word.load() == value) sleep_while(word, value, whose);
  sleepers.fetch_sub(1);
}

int groups_of(int threads) { return (threads + Barrier::kOneLevel - 1) / Barrier::kOneLevel; }

int gates_of(int threads) { return groups_of(threads) > 1 ? groups_of(threads) + 1 : 1; }

}  // namespace

size_t Barrier::bytes_for(int threads) { return sizeof(State) + gates_of(threads) * sizeof(Gate); }

Barrier::Barrier(int threads) : Barrier(threads, nullptr) {}

// Zeroes are a state in which no thread has arrived.
Barrier::Barrier(int threads, uint8_t* memory)
    : whose_(memory ? Sleepers::OfAll : Sleepers::OfProcess) {
  if (!memory) {
    own_ = std::make_unique<uint8_t[]>(bytes_for(threads) + alignof(State));
    const uintptr_t at = reinterpret_cast<uintptr_t>(own_.get());
    memory = own_.get() + (alignof(State) - at % alignof(State)) % alignof(State);
  }
  state_ = reinterpret_cast<State*>(memory);
  auto* gates = reinterpret_cast<Gate*>(memory + sizeof(State));
  const int groups = groups_of(threads);
  places_.resize(gates_of(threads));
  for (size_t number = 0; number < places_.size(); ++number) places_[number].gate = gates + number;
  Place& top = places_.back();
  if (groups > 1) top.expected = groups;
  for (int thread = 0; thread < threads; ++thread) {
    // Even groups of neighbours: 17 threads are 9 and 8.
    Place& place = places_[static_cast<int64_t>(thread) * groups / threads];
    ++place.expected;
    if (groups > 1) place.above = &top;
    place_of_.push_back(&place);
  }
}

void Barrier::wait(int thread) { pass(*place_of_[thread]); }

void Barrier::pass(const Place& place) {
  Gate& gate = *place.gate;
  const uint32_t before = gate.phase.load(std::memory_order_acquire);
  if (state_->abandoned.load(std::memory_order_relaxed)) throw Abandoned();
  if (gate.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == place.expected) {
    gate.arrived.store(0, std::memory_order_relaxed);
    if (place.above) pass(*place.above);
    // Not a store: it would hide that `abandon` has changed the phase, and with it `abandoned`.
    gate.phase.fetch_add(1);
    if (gate.sleepers.load() > 0) wake_all(gate.phase, whose_);
    return;
  }
  wait_while(gate.phase, before, gate.sleepers, whose_);
  if (state_->abandoned.load(std::memory_order_relaxed)) throw Abandoned();
}

void Barrier::abandon() {
  state_->abandoned.store(1);
  for (const Place& place : places_) {
    place.gate->phase.fetch_add(1);
    wake_all(place.gate->phase, whose_);
  }
}

void Barrier::reset() {
  for (const Place& place : places_) place.gate->arrived.store(0, std::memory_order_relaxed);
  state_->abandoned.store(0, std::memory_order_relaxed);
}

}  // namespace octavo
