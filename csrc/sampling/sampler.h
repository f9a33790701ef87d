// The slots of a backend, and the draws of a step: tokens with verified drafts, log-probabilities,
// pooled vectors.
//
// A step's results are made in any thread's order, each in its own place; a row's result depends on
// its own logits and slot alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/table.h"
#include "runtime/team.h"
#include "sampling/draw.h"
#include "sampling/logprobs.h"
#include "sampling/rules.h"
#include "sampling/slot.h"

namespace octavo {

// Rows of a matrix of floats.
struct Rows {
  float* data = nullptr;
  int64_t stride = 0;  // floats
  int32_t count = 0;
  int32_t width = 0;

  float* row(int32_t index) const { return data + index * stride; }
};

struct PromptRows {
  int32_t slot;
  int32_t first_row;
  std::vector<int32_t> targets;
  int32_t count;  // of likely tokens
};

struct PoolRows {
  int32_t slot;
  int32_t first_row;
  int32_t count;
  bool is_last;
  bool apart;  // rows are not added up: each is returned as it is
};

// What a further program computes in a step, as octavo/backends/step.py defines it.
struct Ahead {
  std::string owner;                 // empty: nothing
  std::vector<int32_t> num_steps;    // [samples]: the tokens to propose
  std::vector<int32_t> widths;       // [samples]: the candidates for each; empty: one
  std::vector<int32_t> num_written;  // [samples]: leading drafts whose rows it has computed
  // Known tokens that it lacks, sequence by sequence.
  std::vector<int32_t> token_ids, positions;
  std::vector<int32_t> row_starts;  // [sequences + 1]
};

// A step's draws, as octavo/backends/step.py defines them.
struct Draws {
  std::vector<int32_t> freed;
  std::vector<std::pair<int32_t, SlotSampling>> opened;
  std::vector<int32_t> slots;
  std::vector<int32_t> first_rows;
  std::vector<int32_t> num_drafts;  // empty: no drafts
  std::vector<int32_t> drafts;
  std::vector<PromptRows> prompts;
  std::vector<int32_t> parents;  // [drafts]: the row of its sample that each follows; empty: chains
  std::vector<PoolRows> pools;
  std::vector<std::pair<int32_t, std::vector<int32_t>>> appended;
  Ahead ahead;
  std::vector<uint32_t> masks;  // empty: none; else [samples + drafts, mask_words]
  size_t mask_words = 0;
};

enum class Failure : int32_t { NotFinite, NoTokenLeft };

struct RowLogprobs {
  int32_t slot = 0;
  int32_t rows = 0;   // 0: there are none to return
  int32_t width = 0;  // of a row: 1 + the number of likely tokens
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;
};

struct Pooled {
  int32_t slot;
  std::vector<float> values;
};

struct DrawOutput {
  std::vector<int32_t> tokens;  // [samples, width]
  int32_t width = 1;            // 1 + the most drafts of a sample
  std::vector<int32_t> num_tokens;
  std::vector<int32_t> at;        // of each sample: its row from which it has drawn last
  std::vector<int32_t> num_main;  // … its accepted drafts that are the first of its rows
  std::vector<int32_t> with_state;  // samples with mirostat
  std::vector<double> mu;           // … [samples]: its state behind their tokens
  std::vector<std::pair<int32_t, Failure>> failures;
  std::vector<RowLogprobs> logprobs;
  std::vector<RowLogprobs> prompts;
  std::vector<Pooled> pooled;
  // Of each sample, for each place as many candidates as its width, -1 where there are fewer;
  // empty: none are wanted.
  std::vector<std::vector<int32_t>> proposals;
  double further_seconds = 0.0;                 // that further programs have taken
  // Samples whose rows a user's processors change: they wait for `resume`.
  std::vector<int32_t> waiting;
};

class Sampler {
 public:
  Sampler(const KernelTable& kernels, Team& team, int vocabulary)
      : kernels_(kernels), team_(team), vocabulary_(vocabulary), scratch_(team.size()) {}

  // Frees and opens slots, and appends tokens to some. Throws std::invalid_argument if a slot or an
  // id does not exist.
  void change_slots(Draws& draws);
  // Throws std::invalid_argument if the draws do not fit these rows or the open slots.
  void check(const Draws& draws, int32_t logits_rows, int32_t hidden_rows) const;
  // Throws std::invalid_argument if the masks lack a row, or a bit.
  void check_masks(const Draws& draws) const;
  void draw(const Draws& draws, const Rows& logits, const Rows& hidden, DrawOutput& output);

  // Draws tokens for each slot, open or not, from its row of the logits, which `rows` has: so many
  // as its width, each the one that is drawn where those before it are forbidden; fewer where none
  // can be drawn.
  std::vector<std::vector<int32_t>> draw_apart(const std::vector<const Slot*>& slots,
                                               const std::vector<int32_t>& widths,
                                               const std::vector<int32_t>& rows,
                                               const Rows& logits);

  // For a sample that waits: its next row after the rules that come before processors, -infinity
  // where a token is forbidden. Returns false if the row is not finite, and the sample has failed.
  bool rule_row(const Draws& draws, int32_t sample, const Rows& logits, DrawOutput& output,
                float* ruled);
  // Goes on with what the processors made of that row. Returns whether another row waits.
  bool resume(const Draws& draws, int32_t sample, const Rows& logits, float* ruled,
              DrawOutput& output);
  // Ends a sample that waits: a processor has failed, and the caller has its message.
  void abandon(const Draws& draws, int32_t sample, DrawOutput& output);

  const Slot& slot(int32_t slot) const;

 private:
  struct Scratch {
    DrawScratch draw;
    LogprobsScratch logprobs;
    DryScratch dry;
    std::vector<int32_t> candidates;
    std::vector<std::pair<int32_t, float>> undo;
    std::vector<float> copy;
    std::vector<uint32_t> mask;
  };

  void reserve(const Draws& draws, DrawOutput& output);
  void draw_sample(const Draws& draws, int32_t sample, const Rows& logits, DrawOutput& output,
                   Scratch& scratch);
  // Records the token of a sample's next row, or its failure if it is negative. Returns whether
  // another row is to be drawn: the token is the next draft.
  bool advance(const Draws& draws, int32_t sample, int32_t token, const Rows& logits,
               DrawOutput& output, Scratch& scratch);
  // A token, or kNotFinite or kNoneLeft. The row is the same again afterwards.
  int32_t draw_row(const Slot& slot, const uint32_t* mask, float* logits, Scratch& scratch) const;
  int32_t draw_ruled(const Slot& slot, const uint32_t* mask, bool by_candidates, EditedRow& row,
                     Scratch& scratch) const;
  // The row of the draft behind the sample's present one that is this token; 0: there is none.
  int32_t next_row(const Draws& draws, int32_t sample, int32_t token,
                   const DrawOutput& output) const;
  int32_t row_of(const Draws& draws, int32_t sample, const DrawOutput& output) const;
  const uint32_t* mask_of(const Draws& draws, int32_t sample, const DrawOutput& output) const;
  // `given` are the ids beside the token's own, or null for the likeliest.
  void describe(const float* logits, int32_t token, const int32_t* given, int32_t row,
                RowLogprobs& into, Scratch& scratch) const;
  // Adds hidden rows to a slot's sum. Returns false if the finished vector is not finite.
  bool pool(const PoolRows& part, const Rows& hidden, std::vector<float>& finished);
  void collect_failures(const Draws& draws, DrawOutput& output);
  int32_t num_likely(int32_t count) const;
  RowLogprobs make_rows(int32_t slot, int32_t rows, int32_t count) const;
  void share_out(size_t count, const std::function<void(size_t, Scratch&)>& work);

  const KernelTable& kernels_;
  Team& team_;
  const int vocabulary_;
  std::vector<Slot> slots_;
  std::vector<Scratch> scratch_;  // of each thread
  // Of each sample of the running step: its failure, where its log-probabilities are in the output
  // (-1: none are wanted), and the drafts of the samples before it.
  std::vector<int32_t> results_;
  std::vector<int32_t> logprobs_at_;
  std::vector<int32_t> drafts_before_;
  std::vector<uint8_t> is_pool_whole_;
};

}  // namespace octavo
