// The ranks of an engine: processes that run the same programs, each with its share of the weights.
//
// All map one memory, in which the results of their instructions lie: to a program, a rank is what
// a thread is, but that it has weights of its own. The first rank posts what comes next, a step or
// a message, waits until the others have finished it, and only then posts again. In a step all
// meet at the barriers between its instructions.
//
// The memory is a header, then what all ranks take of it in the same order, so that it lies at the
// same place for all (`same`); from its end downwards lies what the first rank takes alone (`own`),
// which it points out to the others. Of these nothing is returned: sizes are final after the start,
// or grow by doubling. What it is lent (`lend`) it returns, for what is lent later.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/arena.h"
#include "runtime/barrier.h"

namespace octavo {

class Ranks {
 public:
  enum class Kind : uint32_t { Message, Step, Adapter, Copy };

  // What the first rank has posted.
  struct Posted {
    Kind kind = Kind::Message;
    uint32_t program = 0;  // but of a message: the number of the program that it is for
    const uint8_t* data = nullptr;
    size_t bytes = 0;
  };

  // `descriptor` is memory of so many bytes, zeroed, which no other group has; each rank has so
  // many threads. Throws std::bad_alloc if it cannot be mapped.
  Ranks(int descriptor, size_t bytes, int rank, int ranks, int threads);
  Ranks(const Ranks&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int threads() const { return threads_; }
  Barrier& barrier() { return barrier_; }

  // The number of the next program; all ranks make theirs in the same order.
  uint32_t number_program() { return num_programs_++; }

  // ---- memory; throws std::bad_alloc if there is no more ----
  Pages same(size_t bytes, bool huge);
  Pages own(size_t bytes, bool huge);
  // Zeroed pages for the first rank, in any thread, which others may be lent when they end.
  Pages lend(size_t bytes, bool huge);
  uint64_t offset_of(const void* at) const {
    return static_cast<const uint8_t*>(at) - memory_.get();
  }
  uint8_t* at(uint64_t offset) const { return memory_.get() + offset; }

  // ---- of the first rank ----
  // The caller that posts holds this from before `room` until after `wait`.
  std::unique_lock<std::mutex> turn() { return std::unique_lock<std::mutex>(posting_); }
  // Room for what is posted next; it was read when `wait` has returned.
  uint8_t* room(size_t bytes);
  void post(Kind kind, uint32_t program, size_t bytes);
  // Returns when all others have finished what was posted; throws std::runtime_error if the group
  // has ended.
  void wait();

  // ---- of the others ----
  // Waits for what the first rank posts. Throws std::runtime_error if the group has ended.
  Posted next();
  void finish();

  // Ends the group for a reason, which all that wait for others then throw. The first reason stays.
  void end(const std::string& reason);
  // Calls this too when this process ends the group. Before the first step.
  void call_at_end(std::function<void()> call) { at_end_.push_back(std::move(call)); }
  bool has_ended() const;
  std::string reason() const;
  // The name of this rank among those of its machine, whose numbers other machines have too.
  std::string name() const;
  // Throws std::runtime_error with the reason.
  [[noreturn]] void raise() const;

 private:
  struct Header;

  // The places in memory that were returned, each with its bytes; none touches another.
  struct Returned {
    std::mutex mutex;
    std::map<uint64_t, uint64_t> places;

    // Returns the place of so many bytes, which are then no more in it; 0 if there are none.
    uint64_t take(uint64_t bytes);
    void give_back(uint64_t place, uint64_t bytes);
  };

  Header& header() const { return *reinterpret_cast<Header*>(memory_.get()); }
  Pages part(uint64_t offset, size_t bytes, bool huge) const;

  const int rank_, ranks_, threads_;
  std::shared_ptr<uint8_t> memory_;
  uint64_t used_;   // by what all have at the same place
  uint64_t begin_;  // of what the first rank has
  std::mutex taking_;
  const std::shared_ptr<Returned> returned_ = std::make_shared<Returned>();
  Barrier barrier_;
  std::mutex posting_;
  Pages room_;
  std::vector<std::function<void()>> at_end_;
  uint32_t num_programs_ = 0;
  uint32_t seen_ = 0;  // how much was posted, or seen of that
};

// Pages that all ranks have at the same place; those of this process alone if there are no ranks.
inline Pages pages_for(Ranks* ranks, size_t bytes, bool huge) {
  return ranks ? ranks->same(bytes, huge) : Pages(bytes, huge);
}

// Pages for results of steps: where the first rank points them out to the others.
inline Pages pages_for_results(Ranks* ranks, size_t bytes, bool huge) {
  return ranks && ranks->rank() == 0 ? ranks->own(bytes, huge) : Pages(bytes, huge);
}

// Pages that are returned when they end.
inline Pages pages_to_return(Ranks* ranks, size_t bytes, bool huge) {
  return ranks ? ranks->lend(bytes, huge) : Pages(bytes, huge);
}

}  // namespace octavo
