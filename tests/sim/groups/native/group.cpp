// A group of ranks or stages on a simulated machine: the code of the engine's groups, with a model
// that is a hash. Python has it as C functions (tests/sim/groups/library.py).
//
// What a step computes depends on every token of a sequence, read back from the blocks of its
// table, and on the part of each member: what is late, left out or repeated gives another number.
#include <sys/mman.h>

#include "group.h"
#include "program/program.h"
#include "link/frame_link.h"
#include "runtime/team.h"
#include "step/further_stages.h"
#include "step/stages.h"

namespace octavo {

namespace {

constexpr size_t kMemory = size_t{4} << 20;
constexpr int kMostRows = 512;
constexpr int64_t kStride = 4;  // floats from row to row between stages: more than a row has

std::map<const KvCache*, Blocks> caches;  // of stages

}  // namespace

// Caches of stages alone: those of ranks are in their memory.
void KvCache::copy_block(int64_t source, int64_t destination, int64_t) {
  caches.at(this).copy(source, destination);
}

namespace {

// ---- ranks ----

class RankGroup : public Group {
 public:
  RankGroup(int members, int blocks, int block_size, uint64_t seed, const sim::Weather& weather)
      : Group(members, blocks, block_size, seed, weather) {
    sim::machine = &machine;
    const int memory = memfd_create("simulated ranks", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, kMemory) != 0) throw std::bad_alloc();
    for (int number = 0; number < members; ++number) {
      ranks_.push_back(std::make_shared<Ranks>(memory, kMemory, number, members, 1));
      teams_.push_back(std::make_unique<Team>(1, false, ranks_.back()));
      programs_.push_back(ranks_.back()->number_program());
      cells_.push_back(ranks_.back()->same(sizeof(Cell) * blocks * block_size, false));
    }
    close(memory);
    results_ = ranks_[0]->own(sizeof(uint64_t) * kMostRows * members, false);
    start_members([this](int number) { follow(number); });
  }

  void begin_step(const Rows& step) override {
    for (size_t at = 0; at < step.copies.size(); at += 2)
      blocks_of(0).copy(step.copies[at], step.copies[at + 1]);
    StepInputs in = inputs_of(step);
    in.logits_out = reinterpret_cast<float*>(results_.data());
    lead_step(in, programs_[0], *ranks_[0], [&] { share(in, 0); });
    std::vector<uint64_t>& found = found_.emplace_back();
    const auto* parts = reinterpret_cast<const uint64_t*>(results_.data());
    for (int row = 0; row < in.num_logits; ++row) {
      uint64_t state = 0;
      for (int number = 0; number < members_; ++number) state |= parts[row * members_ + number];
      found.push_back(mix(state, version));
    }
  }

  void finish_step(std::vector<uint64_t>& states) override {
    states = std::move(found_.front());
    found_.pop_front();
  }

  void send(uint64_t now) override {
    Ranks& first = *ranks_[0];
    const std::unique_lock<std::mutex> turn = first.turn();
    std::memcpy(first.room(sizeof now), &now, sizeof now);
    first.post(Ranks::Kind::Message, 0, sizeof now);
    first.wait();
  }

  void end(const std::string& reason) override { ranks_[0]->end(reason); }

 private:
  Blocks blocks_of(int number) const {
    return {reinterpret_cast<Cell*>(cells_[number].data()), block_size_};
  }

  void follow(int number) {
    Ranks& own = *ranks_[number];
    follow_first_rank(own, [&](const Ranks::Posted& step) {
      if (step.program != programs_[number]) throw std::runtime_error("it has no such program");
      share(read_step(step, own), number);
    }, versions[number]);
  }

  // This rank's share: the cells of some rows, and some bits of each result.
  void share(const StepInputs& in, int number) {
    Team& team = *teams_[number];
    const Blocks blocks = blocks_of(number);
    team.run([&](int worker) {
      for (int row = number; row < in.num_rows; row += members_) {
        sim::point();
        const auto position = static_cast<uint64_t>(in.positions[row]);
        blocks.at(in, sequence_of(in, row), in.positions[row]) = {
            static_cast<uint64_t>(in.token_ids[row]) + 1, position};
      }
      team.barrier(worker);
      uint64_t part = 0;
      for (int bit = number; bit < 64; bit += members_) part |= uint64_t{1} << bit;
      auto* results = reinterpret_cast<uint64_t*>(in.logits_out);
      for (int row = 0; row < in.num_logits; ++row) {
        sim::point();
        const int at = in.logits_rows[row], sequence = sequence_of(in, at);
        uint64_t state = read_back(in, blocks, sequence, in.positions[at]);
        if (number > 0 && versions[number] != version) state = ~state;
        results[row * members_ + number] = state & part;
      }
      note_share(number);
      team.barrier(worker);
    });
  }

  std::vector<std::shared_ptr<Ranks>> ranks_;
  std::vector<std::unique_ptr<Team>> teams_;
  std::vector<uint32_t> programs_;
  std::vector<Pages> cells_;  // one memory, as each rank has mapped it
  Pages results_;
  std::deque<std::vector<uint64_t>> found_;  // of each step in flight
};

// ---- stages ----

uint64_t state_at(const float* row) {
  uint64_t state;
  std::memcpy(&state, row, sizeof state);
  return state;
}

class StageGroup : public Group {
 public:
  StageGroup(int members, int blocks, int block_size, uint64_t seed, const sim::Weather& weather)
      : Group(members, blocks, block_size, seed, weather) {
    sim::machine = &machine;
    cells_.assign(members, std::vector<Cell>(int64_t{blocks} * block_size));
    links_.resize(members);
    std::vector<int> theirs(members);
    for (int number = 1; number < members; ++number) {
      const auto [ours, other] = machine.connect();
      links_[number] = std::make_shared<FrameLink>(ours);
      theirs[number] = other;
    }
    start_members([this, theirs](int number) { follow(number, theirs[number]); });
    for (int number = 1; number < members; ++number)
      machine.sockets_of[number - 1] = {theirs[number]};
    stages_ = std::make_unique<FurtherStages>(
        std::vector<std::shared_ptr<FrameLink>>(links_.begin() + 1, links_.end()));
    for (int stage = 0; stage < stages_->count(); ++stage)
      machine.start([this, stage] { stages_->carry(stage); });
  }

  void begin_step(const Rows& step) override {
    const Blocks own = blocks_of(0);
    for (size_t at = 0; at < step.copies.size(); at += 2) {
      own.copy(step.copies[at], step.copies[at + 1]);
      stages_->copy(step.copies[at], step.copies[at + 1], 0);
    }
    const StepInputs in = inputs_of(step);
    std::vector<float> rows(in.num_rows * kStride);
    for (int row = 0; row < in.num_rows; ++row)
      own.at(in, sequence_of(in, row), in.positions[row]) = {
          static_cast<uint64_t>(in.token_ids[row]) + 1, static_cast<uint64_t>(in.positions[row])};
    std::vector<uint64_t> own_states;
    for (int row = 0; row < in.num_rows; ++row) {
      own_states.push_back(read_back(in, own, sequence_of(in, row), in.positions[row]));
      std::memcpy(&rows[row * kStride], &own_states.back(), sizeof(uint64_t));
    }
    in_flight_.push_back({in.num_rows, step.logits});
    stages_->send(in, {rows.data(), in.num_rows, 2, kStride});
  }

  void finish_step(std::vector<uint64_t>& states) override {
    const InFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    std::vector<float> rows(step.rows * kStride);
    stages_->receive({rows.data(), step.rows, 2, kStride});
    for (const int32_t row : step.logits)
      states.push_back(mix(state_at(&rows[row * kStride]), version));
  }

  void send(uint64_t now) override {
    for (int number = 1; number < members_; ++number)
      links_[number]->send(FrameLink::Kind::Message, reinterpret_cast<const uint8_t*>(&now),
                           sizeof now);
  }

  void end(const std::string&) override {
    for (int number = 1; number < members_; ++number) links_[number]->close();
  }

  void close_engine() override { stages_->end(); }
  int num_layers() const override { return members_; }
  int num_carriers() const override {
    int found = 0;
    for (int at = members_ - 1; at < 2 * (members_ - 1); ++at)
      found += machine.processes[at].is_alive();
    return found;
  }

 private:
  Blocks blocks_of(int number) { return {cells_[number].data(), block_size_}; }

  void follow(int number, int descriptor) {
    FrameLink link(descriptor);
    KvCache cache;
    const Blocks blocks = blocks_of(number);
    caches[&cache] = blocks;
    Program program(kStride, [&](const StepInputs& in) { run(in, blocks, number); });
    for (;;) {
      const FrameLink::Frame frame = follow_steps(link, program, cache);
      if (frame.kind != FrameLink::Kind::Message || frame.content.size() != sizeof(uint64_t))
        throw std::runtime_error("a frame that is no message");
      std::memcpy(&versions[number], frame.content.data(), sizeof(uint64_t));
    }
  }

  // A stage's layers: they keep what comes, and add what they have kept of the whole sequence.
  void run(const StepInputs& in, const Blocks& blocks, int number) {
    note_share(number);
    for (int row = 0; row < in.num_rows; ++row) {
      sim::point();
      const int sequence = sequence_of(in, row), position = in.positions[row];
      const uint64_t incoming = state_at(in.given + row * in.state_stride);
      blocks.at(in, sequence, position) = {incoming, static_cast<uint64_t>(position)};
      uint64_t state = mix(incoming, read_back(in, blocks, sequence, position));
      if (versions[number] != version) state = ~state;
      std::memcpy(in.state_out + row * kStride, &state, sizeof state);
    }
  }

  struct InFlight { int32_t rows; std::vector<int32_t> logits; };

  std::vector<std::vector<Cell>> cells_;  // of each stage
  std::vector<std::shared_ptr<FrameLink>> links_;
  std::unique_ptr<FurtherStages> stages_;
  std::deque<InFlight> in_flight_;
};

// The states that a group must find for the last of so many tokens.
uint64_t right_state(const int32_t* tokens, int count, int layers) {
  std::vector<uint64_t> kept(count), found(count);
  for (int at = 0; at < count; ++at) kept[at] = static_cast<uint64_t>(tokens[at]) + 1;
  for (int layer = 0; layer < layers; ++layer) {
    uint64_t state = 17;
    for (int at = 0; at < count; ++at) {
      state = mix(state, kept[at]);
      found[at] = layer == 0 ? state : mix(kept[at], state);
    }
    kept = found;
  }
  return found[count - 1];
}

}  // namespace

}  // namespace octavo

using octavo::Group;

extern "C" {

struct Chances {
  double late, lost, repeated, broken, longest_late, longest_delay;
};

// Of ranks (0), stages (1), or ranks that add up on so many nodes (2).
Group* group_new(int kind, int members, int nodes, int blocks, int block_size, uint64_t seed,
                 const Chances* chances) {
  const sim::Weather weather{chances->late,   chances->lost,         chances->repeated,
                             chances->broken, chances->longest_late, chances->longest_delay};
  if (kind == 2)
    return octavo::make_sum_group(members, nodes, blocks, block_size, seed, weather).release();
  if (kind == 1) return new octavo::StageGroup(members, blocks, block_size, seed, weather);
  return new octavo::RankGroup(members, blocks, block_size, seed, weather);
}

void group_free(Group* group) {
  sim::machine = &group->machine;
  delete group;
  sim::machine = nullptr;
}

// Begins a step. `sizes` are: rows, sequences, table width, logits, copies (of two numbers each).
void group_begin(Group* group, const int32_t* sizes, const int32_t* numbers) {
  auto step = std::make_shared<octavo::Rows>();
  const auto take = [&](std::vector<int32_t>& to, int count) {
    to.assign(numbers, numbers + count);
    numbers += count;
  };
  step->sequences = sizes[1];
  step->width = sizes[2];
  take(step->tokens, sizes[0]);
  take(step->positions, sizes[0]);
  take(step->row_starts, sizes[1] + 1);
  take(step->table, sizes[1] * sizes[2]);
  take(step->logits, sizes[3]);
  take(step->copies, sizes[4] * 2);
  ++group->num_steps;
  group->begin([group, step] { group->begin_step(*step); });
}

// Begins to take the states of the oldest step.
void group_take(Group* group) {
  ++group->num_finished;
  group->states.clear();
  group->begin([group] { group->finish_step(group->states); });
}

void group_send(Group* group, int64_t version) {
  group->version = version;
  group->begin([group, version] { group->send(version); });
}

// Runs the group until the first member has finished what was begun, or the time has come. 0: it
// has finished, 1: it has failed, 2: it waits.
int group_run(Group* group, double until) {
  sim::machine = &group->machine;
  if (!group->machine.run(group->lead(), until)) return 2;
  return group->lead().failure.empty() ? 0 : 1;
}

void group_idle(Group* group, double until) {
  sim::machine = &group->machine;
  group->machine.run_all(until);
}

void group_settle(Group* group, double seconds) {
  sim::machine = &group->machine;
  group->machine.settle(seconds);
}

double group_now(const Group* group) { return group->machine.now; }
int group_num_faults(const Group* group) { return group->machine.num_faults; }
const char* group_failure(Group* group) { return group->lead().failure.c_str(); }

// Whether each member has computed its share of all steps whose states were taken.
int group_all_computed(const Group* group) {
  for (int number = 1; number < group->members(); ++number)
    if (group->computed[number] < group->num_finished) return 0;
  return 1;
}

int group_states(const Group* group, uint64_t* to) {
  for (size_t at = 0; at < group->states.size(); ++at) to[at] = group->states[at];
  return static_cast<int>(group->states.size());
}

uint64_t group_right_state(const Group* group, const int32_t* tokens, int count) {
  return octavo::mix(octavo::right_state(tokens, count, group->num_layers()),
                     static_cast<uint64_t>(group->version));
}

// Lets a member die at its point of this number from now on; 0: now.
void group_kill(Group* group, int member, int64_t points) {
  if (points == 0) group->machine.kill(group->member(member));
  else group->member(member).points_to_live = points;
}

// Lets a member do nothing more, although it has not ended.
void group_stop(Group* group, int member) {
  if (group->member(member).is_alive())
    group->member(member).state = sim::Process::State::Dead;
}

// Lets a member fail in a step from now on: 1 is the next one.
void group_fail(Group* group, int member, int64_t steps) {
  group->failing = member;
  group->fails_at = group->num_steps + steps;
}

// 0: it lives, 1: it has ended by itself, 2: it was killed.
int group_state_of(Group* group, int member) {
  const sim::Process::State state = group->member(member).state;
  return state == sim::Process::State::Ended ? 1 : state == sim::Process::State::Dead ? 2 : 0;
}

// Lets a member read nothing more, so that what is sent to it waits for room.
void group_fill(Group* group, int member) {
  group_stop(group, member);
  group->machine.fill(group->machine.sockets_of[member - 1].front());
}

void group_close(Group* group) {
  group->begin([group] { group->close_engine(); });
}

// Those in the engine's process that carry rows between stages, and have not ended.
int group_num_carriers(const Group* group) { return group->num_carriers(); }

void group_end(Group* group, const char* reason) {
  sim::machine = &group->machine;
  group->machine.look_again();
  group->end(reason);
}
}
