// Steps of a backend: slots change, blocks are copied, the program runs, and tokens are drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program/program.h"
#include "runtime/arena.h"
#include "runtime/job_queue.h"
#include "runtime/team.h"
#include "sampling/mask_gate.h"
#include "sampling/sampler.h"
#include "step/further_programs.h"

namespace octavo {

class StepRunner;

// A block of a KV group.
struct BlockPlace {
  int32_t block, group;
};

// What becomes the content of a block.
struct LoadedBlock {
  BlockPlace place;
  std::vector<uint8_t> content;
};

// What a slot for adapters has from a step on.
struct AdapterSlot {
  int32_t slot;
  std::shared_ptr<const PackedAdapter> adapter;  // nullptr: nothing
  float scale;
};

// A step with everything that it needs, so that it can run at any time.
class StepJob : public Job {
 public:
  explicit StepJob(StepRunner& runner) : runner_(runner) {}

  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> types;  // of texts; empty: each row's is 0
  std::vector<int32_t> row_starts;
  std::vector<int32_t> slots;  // of each sequence; needed where a token is kLastSample
  std::vector<std::vector<int32_t>> tables;
  int32_t table_width = 0;
  std::vector<int32_t> logits_rows;
  std::vector<int32_t> hidden_rows;
  std::vector<BlockPlace> saves;  // before the copies
  std::vector<BlockCopy> copies;
  std::vector<LoadedBlock> loads;  // after the copies
  std::vector<AdapterSlot> adapter_slots;  // filled before the rows are computed
  std::vector<RowEcho> echoes;    // rows that other sequences keep too
  std::vector<int32_t> adapters;  // the slot of each row's adapter, or -1; empty: no row has one
  Draws draws;
  std::shared_ptr<MaskGate> masks;  // of the draws, if there are any
  DrawOutput output;
  std::vector<std::vector<uint8_t>> saved;  // the content of each of `saves`

  // Takes over the rows and samples of a step in which each sequence had one row and drew a token:
  // each is a position further, and its token is the last one. That step may be running.
  void continue_from(const StepJob* last);
  // Writes blocks into a row of a group's table, which becomes wider if it must.
  void grow(size_t group, int32_t row, int32_t column, const std::vector<int32_t>& blocks);

 private:
  void run() override;
  bool is_left() const override { return is_left_; }
  bool can_go_on() const override;
  void go_on() override;
  void widen(int32_t width);

  friend class StepRunner;
  StepRunner& runner_;
  bool has_slots_ = false;  // the slots have changed as its draws say
  bool is_left_ = false;    // its second part is to be done
  bool is_sent_ = false;    // to the further stages
};

class StepRunner {
 public:
  // A token id that stands for the last known token of the row's slot.
  static constexpr int32_t kLastSample = -1;

  StepRunner(const KernelTable& kernels, std::shared_ptr<Program> program,
             std::shared_ptr<Team> team, int vocabulary, int hidden);
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;

  std::shared_ptr<const StepJob> last_job;  // the last one submitted

  // ---- made once ----
  void add_program(std::string owner, std::shared_ptr<Program> program);
  void use_cache(std::shared_ptr<KvCache> cache);

  JobQueue& queue() { return queue_; }
  Sampler& sampler() { return sampler_; }

  // The first part of a step: all of it, but with further stages only what comes before them.
  void begin(StepJob& job);
  // The second part, in the same order.
  void finish(StepJob& job);
  // Whether the rows of the oldest step have come back.
  bool has_come() const;
  // Copies the blocks of an accepted branch of drafts to the places of the sample's own, behind its
  // last draw.
  void keep_branch(const StepJob& job, int32_t sample);
  // The rows of the last step that ran; the next one overwrites them.
  const Rows& logits() const { return logits_; }
  // Their memory, for callers that read them after the next step.
  const std::shared_ptr<Pages>& logits_memory() const { return logits_memory_; }
  // Of the last layer, and then of the kept ones.
  const std::vector<Rows>& hidden() const { return hidden_; }
  const std::vector<std::shared_ptr<Pages>>& hidden_memory() const { return hidden_memory_; }

  // Makes the memory for results of so many rows; returns the bytes of all that there is.
  size_t reserve(int32_t logits_rows, int32_t hidden_rows);
  // The same for the largest step of the further programs.
  size_t reserve_further(int32_t rows, int32_t sequences, int32_t positions) {
    return further_.reserve(rows, sequences, positions);
  }

 private:
  void resolve(StepJob& job) const;
  int64_t hidden_stride(size_t output) const {
    return output ? program_->kept_strides()[output - 1] : program_->hidden_stride();
  }
  void change_slots(StepJob& job);
  void move_blocks(StepJob& job);
  StepInputs inputs_of(const StepJob& job) const;
  StepInputs forward(StepJob& job);
  bool has_stages() const { return program_->stages() != nullptr; }

  std::shared_ptr<Program> program_;
  std::shared_ptr<Team> team_;
  std::shared_ptr<KvCache> cache_ = std::make_shared<KvCache>();
  Sampler sampler_;
  FurtherPrograms further_;
  const int vocabulary_;
  const int hidden_size_;
  std::shared_ptr<Pages> logits_memory_ = std::make_shared<Pages>();
  std::vector<std::shared_ptr<Pages>> hidden_memory_;
  std::shared_ptr<Pages> state_memory_ = std::make_shared<Pages>();  // of the rows of logits
  Rows logits_;
  std::vector<Rows> hidden_;
  int num_left_ = 0;  // steps that have begun, and wait for further stages
  JobQueue queue_;  // last, so that it ends before what its jobs use
};

}  // namespace octavo
