// A model's forward pass as a list of instructions, and how a team of threads replays it.
//
// The list is made once. The number of a step's rows is the only size that is not fixed, so scratch
// memory is laid out in bytes a row and grows with the largest step so far.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "choice/activity.h"
#include "kernels/table.h"
#include "program/attention.h"
#include "program/context.h"
#include "experts/experts.h"
#include "program/instruction.h"
#include "program/rows.h"
#include "runtime/sums.h"
#include "runtime/team.h"
#include "runtime/workers.h"
#include "step/posted_step.h"

namespace octavo {

class FurtherNodes;
class FurtherStages;

// Rows that a thread takes at once of a product for each head: their prepared parts stay in its
// nearest caches.
constexpr int kHeadRows = 32;

// The rows of a pass that proposes all tokens of a sequence at once: its last one, and masks behind
// it, each of which proposes the token in its place. 0: a pass proposes one.
struct DraftBlock {
  int32_t rows = 0;
  int32_t mask = 0;
};

class Program {
 public:
  // With `sums`, this process has some inputs of some matrices, and adds up what all ranks make of
  // theirs; the team is then of this process alone.
  Program(const KernelTable& kernels, std::shared_ptr<Team> team,
          std::shared_ptr<Sums> sums = nullptr);
  Program(const Program&) = delete;

  // ---- made once ----
  void append(Instruction instruction);
  int add_rope(std::vector<float> frequencies, bool interleaved, float magnitude);
  void set_scratch(Space space, int64_t row_bytes, int64_t prepared_row_bytes);
  void use_cache(std::shared_ptr<KvCache> cache);
  // The further stages of a pipeline, through which the rows of a `Relay` go.
  void set_stages(std::shared_ptr<FurtherStages> stages) { stages_ = std::move(stages); }
  const std::shared_ptr<FurtherStages>& stages() const { return stages_; }
  // The further nodes of ranks that add up, of which this process is the first.
  void set_nodes(std::shared_ptr<FurtherNodes> nodes) { nodes_ = std::move(nodes); }

  // How it proposes tokens, if in one pass.
  void set_block(const DraftBlock& block) { block_ = block; }

  // Makes the memory of the largest step, without computing one, and returns its bytes: of `rows`
  // rows, so many wanted ones, and `sequences` of up to `positions`.
  size_t reserve(int32_t rows, int32_t logits, int32_t hidden, int32_t sequences,
                 int32_t positions);

  // Copies experts to ranks that have less to do, chosen after every so many steps.
  void copy_experts_after(int steps) { experts_.copy_after(steps); }
  // The experts that are in two ranks now.
  std::vector<Experts::Redundant> redundant_experts() const { return experts_.redundant(); }

  void make_adapter_slots(int32_t slots) { context_.adapters.make_slots(slots); }

  // ---- every step; concurrent callers run one after the other ----
  void run(const StepInputs& inputs);
  // Computes this rank's share of a step that the first rank has posted.
  void follow(const StepInputs& inputs);
  // Computes a step that the first node has sent with the ranks of this one, of which this process
  // is the first. The logits must lie in memory of the ranks.
  void lead_node(const StepInputs& inputs);
  // Takes an adapter that the first rank has posted.
  void follow(const PostedAdapter& posted);
  // Copies a block of the cache, in every rank that has a cache of its own.
  void copy_block(const BlockCopy& copy);
  void follow(const BlockCopy& copy);
  uint32_t number() const { return number_; }
  // What a slot for adapters has from the next step on.
  void put_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> adapter, float scale);

  // Floats from row to row of the results.
  int64_t logits_stride() const { return logits_stride_; }
  int64_t hidden_stride() const { return hidden_stride_; }
  const std::vector<int64_t>& kept_strides() const { return kept_strides_; }
  int64_t state_stride() const { return state_stride_; }  // 0: it gives no states
  // The ranks of this program's process; nullptr if there are none.
  Ranks* ranks() const { return sums_ ? &sums_->ranks() : team_->ranks(); }
  bool has_sums() const { return sums_ != nullptr; }
  bool reads_states() const { return reads_states_; }
  const DraftBlock& block() const { return block_; }
  int state_rows() const { return context_.step.rows(state_space_); }  // of the last step

  // Computes the products of a format, for one class of rows, by these kernels from the next step
  // on, with this prefetch distance. The bits stay the same; throws std::invalid_argument if they
  // would not.
  void choose(Format format, int row_class, const KernelTable& kernels, int ahead);

  // Whether steps are running, for measurements that wait until none is.
  std::shared_ptr<const Activity> activity() const { return activity_; }
  // Counts the steps of this program as those of another.
  void count_with(const Program& other) { activity_ = other.activity_; }

  // Starts (or stops) measuring, from zero.
  void set_profiling(bool on);
  // Worker 0's seconds in each instruction: at work, and waiting for the other threads before it.
  const std::vector<double>& seconds() const { return seconds_; }
  const std::vector<double>& waits() const { return waits_; }
  int threads() const { return team_->size(); }

 private:
  void put(int32_t slot, std::shared_ptr<const PackedAdapter> adapter, float scale);
  void begin(const StepInputs& inputs);
  void compute();
  void make_room();
  std::pair<size_t, size_t> own_instructions() const;
  StepInputs with_own_results(const StepInputs& inputs);
  void attempt(int index);
  void work(int index);

  // instructions.cpp
  void execute(const Instruction& i, Shares& shares, int index, Worker& worker);
  void execute_rows(const Instruction& i, int first, int end);
  void embed(const Instruction& i, int index, Worker& worker);
  bool look_up(const Instruction& i, int32_t id, float* out) const;
  void look_up_share(const Instruction& i, int64_t id, float* out) const;
  void change_looked_up(const Instruction& i, int row, int32_t id, float* spare) const;
  void select(const Instruction& i, int first, int end);
  float* kept_row(const Instruction& i, int32_t row, int before, int width) const;
  float* kept_row_of(const Instruction& i, int64_t sequence, int32_t position, int width) const;
  void keep(const Instruction& i, int first, int end);
  void recall(const Instruction& i, int first, int end);
  void spread(const Instruction& i, int first, int end);
  void take_given(const Instruction& i, int first, int end);
  void relay(const Instruction& i);
  void all_reduce(const Instruction& i, int index);
  void prepare(const Instruction& i, int index, Worker& worker);
  void gemm(const Instruction& i, Shares& shares, int index, Worker& worker);
  void convolve(const Instruction& i, int index);
  void shrink(const Instruction& i, int index, Worker& worker);
  void whole_gemm(const Instruction& i, int index, Worker& worker);
  void head_gemm(const Instruction& i, Shares& shares, int index, Worker& worker);

  const KernelTable& kernels_;
  std::shared_ptr<Team> team_;
  const std::shared_ptr<Sums> sums_;
  Context context_;
  Ropes ropes_;
  Attention attention_;
  Experts experts_;
  int state_groups_ = 0;  // one more than the last group that keeps floats
  std::vector<Instruction> instructions_;
  std::vector<std::unique_ptr<Shares>> shares_;  // of each instruction
  std::vector<Worker> workers_;
  std::shared_ptr<FurtherStages> stages_;
  std::shared_ptr<FurtherNodes> nodes_;
  size_t relay_ = 0;  // the number of the `Relay`
  int64_t logits_stride_ = 0;
  int64_t hidden_stride_ = 0;
  std::vector<int64_t> kept_strides_;
  int64_t state_stride_ = 0;
  Space state_space_ = Space::Logits;
  bool reads_states_ = false;
  DraftBlock block_;
  std::vector<float> own_results_;  // of a further rank, beside its share of the logits
  uint32_t number_ = 0;  // among the programs of the ranks
  size_t kernel_scratch_ = 0;
  size_t widest_ = 0;  // floats of the widest row that a thread normalises in its own memory

  std::mutex running_;
  std::shared_ptr<Activity> activity_ = std::make_shared<Activity>();
  bool profiling_ = false;
  std::vector<double> seconds_;
  std::vector<double> waits_;
};

}  // namespace octavo
