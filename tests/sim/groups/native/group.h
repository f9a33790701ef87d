// What all simulated groups have, whatever their members divide.
#pragma once

#include "cells.h"
#include "machine.h"
#include "runtime/ranks.h"
#include "step/group_step.h"

namespace octavo {

struct Rows {
  std::vector<int32_t> tokens, positions, row_starts, table, logits, copies;
  int32_t sequences = 0, width = 0;
};

// What all groups have: the first member, which is the engine, works only while it is asked to.
class Group {
 public:
  Group(int members, int blocks, int block_size, uint64_t seed, const sim::Weather& weather)
      : machine(seed, weather), members_(members), block_size_(block_size), num_blocks_(blocks) {}
  virtual ~Group() = default;

  // Begins a step: ranks compute it, and stages may compute others before its states are taken.
  virtual void begin_step(const Rows& step) = 0;
  // Takes the states of the oldest step.
  virtual void finish_step(std::vector<uint64_t>& states) = 0;
  virtual void send(uint64_t version) = 0;
  virtual void end(const std::string& reason) = 0;
  // What the engine does when it is closed; then those that carry its rows must end.
  virtual void close_engine() {}
  virtual int num_carriers() const { return 0; }
  // How often what is kept of a sequence is read back: once in each layer or stage.
  virtual int num_layers() const { return 1; }

  void begin(std::function<void()> work) {
    if (lead_) machine.forget_last();
    lead_ = &machine.start(std::move(work));
  }
  sim::Process& lead() { return *lead_; }
  sim::Process& member(int number) { return machine.processes[number - 1]; }
  int members() const { return members_; }

  sim::Machine machine;
  std::vector<uint64_t> states;
  int64_t num_steps = 0;              // that were begun
  int64_t num_finished = 0;           // whose states were asked for
  std::vector<int64_t> computed;      // by each member: the last step whose share it has computed
  int64_t fails_at = -1;              // the step that a member cannot compute
  int failing = 1;                    // which
  int64_t version = 0;                // as the last message said
  std::vector<int64_t> versions;      // as each member knows it

 protected:
  void start_members(const std::function<void(int)>& work) {
    computed.assign(members_, 0);
    versions.assign(members_, 0);
    for (int number = 1; number < members_; ++number)
      machine.start([work, number] { work(number); });
  }
  void note_share(int number) {
    if (computed[number] + 1 == fails_at && number == failing)
      throw std::runtime_error("no memory");
    ++computed[number];
  }
  StepInputs inputs_of(const Rows& step) const {
    StepInputs in;
    in.token_ids = step.tokens.data();
    in.positions = step.positions.data();
    in.row_starts = step.row_starts.data();
    in.sequences = step.sequences;
    in.tables = {step.table.data()};
    in.table_width = step.width;
    in.logits_rows = step.logits.data();
    in.num_rows = static_cast<int32_t>(step.tokens.size());
    in.num_logits = static_cast<int32_t>(step.logits.size());
    return in;
  }

  const int members_, block_size_, num_blocks_;
  sim::Process* lead_ = nullptr;
};

// Computes a rank's steps, and notes the version that messages say. What it cannot compute ends
// the group, as in Python (octavo/backends/native/ranks/messages.py).
template <typename Compute>
void follow_first_rank(Ranks& own, Compute compute, int64_t& version) {
  try {
    for (;;) {
      const Ranks::Posted posted = next_message(own, compute);
      std::memcpy(&version, posted.data, sizeof version);
      own.finish();
    }
  } catch (const std::exception& error) {
    own.end(own.name() + " has ended: " + error.what());
    throw;
  }
}

// Nodes of so many ranks each that add up over links between them; `members` are all ranks.
std::unique_ptr<Group> make_sum_group(int members, int nodes, int blocks, int block_size,
                                      uint64_t seed, const sim::Weather& weather);

}  // namespace octavo
