// Further programs over the slots of a backend. Each computes the rows of every step, and one of
// them proposes tokens behind the draws: k steps, each on the token of the one before.
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
  explicit FurtherPrograms(int vocabulary) : vocabulary_(vocabulary) {}

  // A program whose KV is in groups of its own, which `owner` names.
  void add(std::string owner, std::shared_ptr<Program> program);
  void use_cache(const std::shared_ptr<KvCache>& cache);

  // Makes the memory of the largest step, and returns its bytes.
  size_t reserve(int32_t rows, int32_t sequences, int32_t positions);

  // Throws std::invalid_argument if the draws ask for what no program proposes.
  void check(const Draws& draws) const;
  // Computes the rows of a step, whose draws have the output.
  void run(const StepInputs& step, const Draws& draws, Sampler& sampler, DrawOutput& output);

 private:
  struct Named {
    std::string owner;
    std::shared_ptr<Program> program;
  };
  // A sample for which tokens are proposed.
  struct Turn {
    int32_t sample;
    int32_t sequence;
    int32_t position;  // of its last token
    int32_t steps_left;
    Slot slot;  // goes on by itself
  };

  Program& program_of(const std::string& owner) const;
  std::vector<Turn> turns_of(const StepInputs& step, const Draws& draws, const Sampler& sampler,
                             const DrawOutput& output) const;
  // Draws a token for each turn from the program's logits behind its last one.
  std::vector<int32_t> step_on(Program& program, const StepInputs& step,
                               const std::vector<Turn>& turns, Sampler& sampler);

  const int vocabulary_;
  std::vector<Named> programs_;
  Pages logits_;
};

}  // namespace octavo
