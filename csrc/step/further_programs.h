// Further programs over the slots of a backend. In a step, those of one owner compute what they
// lack of the sequences, and propose tokens behind the draws: k steps, each on the token before; or
// each by a program of its own, which reads the state from which the last token was drawn; or all
// in one pass, by rows of masks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "program/kv_cache.h"
#include "program/program.h"
#include "program/step.h"
#include "runtime/arena.h"
#include "sampling/sampler.h"

namespace octavo {

class FurtherPrograms {
 public:
  FurtherPrograms(int vocabulary, Ranks* ranks) : vocabulary_(vocabulary), ranks_(ranks) {}

  // A program whose KV is in groups of its own, which `owner` names; further ones of an owner are
  // for its next steps.
  void add(std::string owner, std::shared_ptr<Program> program);
  void use_cache(const std::shared_ptr<KvCache>& cache);

  // Makes the memory of the largest step, and returns its bytes.
  size_t reserve(int32_t rows, int32_t sequences, int32_t positions);

  // Throws std::invalid_argument if the draws ask for what no program can compute.
  void check(const Draws& draws, size_t sequences) const;
  // Computes what the draws ask for, behind a step whose draws have the output.
  void run(const StepInputs& step, const Draws& draws, Sampler& sampler, DrawOutput& output);

 private:
  struct Named {
    std::string owner;
    std::vector<std::shared_ptr<Program>> programs;  // for its steps; the last goes on
  };
  // A sample for which tokens are proposed.
  struct Turn {
    int32_t sample;
    int32_t sequence;
    int32_t position;  // of its last token
    int32_t state;     // the row of logits from which that was drawn
    int32_t steps_left;
    int32_t width;  // candidates for each place
    int32_t row;    // of its logits that comes next
    Slot slot;  // goes on by itself
  };
  // Rows of some of the step's sequences.
  struct Rows {
    std::vector<int32_t> token_ids, positions, starts{0}, sequences, wanted;

    void add(int32_t token, int32_t position) {
      token_ids.push_back(token);
      positions.push_back(position);
    }
    // Ends the rows of a sequence, if it has any.
    void end(int32_t sequence);
  };

  const Named& named(const std::string& owner) const;
  std::vector<Turn> turns_of(const StepInputs& step, const Draws& draws, const Sampler& sampler,
                             const DrawOutput& output) const;
  // What the program lacks: known tokens, and those that the turns have got in this step.
  static Rows lacking(const StepInputs& step, const Draws& draws, const std::vector<Turn>& turns,
                      const DrawOutput& output);
  // Proposes by one pass for each place, or by one for all of them.
  void run_passes(const Named& named, const StepInputs& step, const Draws& draws,
                  std::vector<Turn>& turns, Sampler& sampler, DrawOutput& output);
  void run_block(Program& program, const StepInputs& step, std::vector<Turn>& turns,
                 Sampler& sampler, DrawOutput& output);
  // Computes rows of the program, and the logits of the wanted ones.
  void compute(Program& program, const StepInputs& step, const Rows& rows,
               const std::vector<Turn>& turns);
  // Returns the tokens that are drawn for each turn, from its row of the logits.
  std::vector<std::vector<int32_t>> drawn(const Program& program, const std::vector<Turn>& turns,
                                          Sampler& sampler) const;
  // Gives each turn its candidates, of which it goes on with the first; those that are over leave.
  static void go_on(std::vector<Turn>& turns, const std::vector<std::vector<int32_t>>& tokens,
                    DrawOutput& output);

  const int vocabulary_;
  std::vector<Named> owners_;
  Ranks* const ranks_;
  Pages logits_;
  int32_t num_logits_ = 0;  // rows of the last pass
  Pages states_;  // that a program reads: a row for each turn
};

}  // namespace octavo
