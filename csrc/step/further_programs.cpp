// Further programs over the slots of a backend.
#include "step/further_programs.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace octavo {

namespace {

void make_room(Pages& pages, int64_t stride, int32_t rows) {
  const size_t bytes = sizeof(float) * stride * rows;
  if (bytes <= pages.bytes()) return;
  pages = Pages();  // the old memory is returned before new memory is taken
  pages = Pages(bytes, are_huge(bytes));
}

}  // namespace

void FurtherPrograms::add(std::string owner, std::shared_ptr<Program> program) {
  programs_.push_back({std::move(owner), std::move(program)});
}

void FurtherPrograms::use_cache(const std::shared_ptr<KvCache>& cache) {
  for (const Named& each : programs_) each.program->use_cache(cache);
}

size_t FurtherPrograms::reserve(int32_t rows, int32_t sequences, int32_t positions) {
  size_t bytes = 0;
  for (const Named& each : programs_) {
    bytes += each.program->reserve(rows, sequences, 0, sequences, positions);
    make_room(logits_, each.program->logits_stride(), sequences);
  }
  return bytes + logits_.bytes();
}

Program& FurtherPrograms::program_of(const std::string& owner) const {
  for (const Named& each : programs_)
    if (each.owner == owner) return *each.program;
  throw std::invalid_argument("there is no further program " + owner);
}

void FurtherPrograms::check(const Draws& draws) const {
  if (draws.ahead.owner.empty()) return;
  program_of(draws.ahead.owner);
  if (draws.ahead.num_steps.size() != draws.slots.size())
    throw std::invalid_argument("every sample needs a number of tokens to propose");
}

void FurtherPrograms::run(const StepInputs& step, const Draws& draws, Sampler& sampler,
                          DrawOutput& output) {
  StepInputs rows = step;
  rows.num_logits = rows.num_hidden = 0;
  for (const Named& each : programs_) each.program->run(rows);
  if (draws.ahead.owner.empty()) return;
  Program& program = program_of(draws.ahead.owner);
  output.proposals.resize(draws.slots.size());
  std::vector<Turn> turns = turns_of(step, draws, sampler, output);
  while (!turns.empty()) {
    const std::vector<int32_t> tokens = step_on(program, step, turns, sampler);
    for (size_t at = 0; at < turns.size(); ++at) {
      Turn& turn = turns[at];
      turn.steps_left = tokens[at] < 0 ? 0 : turn.steps_left - 1;
      if (tokens[at] < 0) continue;  // no token can be drawn: none is proposed
      turn.slot.append(tokens[at]);
      ++turn.position;
      output.proposals[turn.sample].push_back(tokens[at]);
    }
    const auto is_over = [](const Turn& turn) { return turn.steps_left == 0; };
    turns.erase(std::remove_if(turns.begin(), turns.end(), is_over), turns.end());
  }
}

std::vector<FurtherPrograms::Turn> FurtherPrograms::turns_of(const StepInputs& step,
                                                             const Draws& draws,
                                                             const Sampler& sampler,
                                                             const DrawOutput& output) const {
  std::vector<Turn> turns;
  for (size_t sample = 0; sample < draws.slots.size(); ++sample) {
    const int32_t slot = draws.slots[sample], wanted = draws.ahead.num_steps[sample];
    const auto is_its = [&](const auto& failure) { return failure.first == slot; };
    const bool has_failed =
        std::any_of(output.failures.begin(), output.failures.end(), is_its);
    if (wanted <= 0 || has_failed || output.num_tokens[sample] == 0) continue;
    const int32_t row = step.logits_rows[draws.first_rows[sample]];
    const int32_t* starts = step.row_starts;
    const int32_t* after = std::upper_bound(starts, starts + step.sequences + 1, row);
    // The last token known before, the drafts that were accepted, and the token behind them.
    const int32_t position = step.positions[row] + output.num_tokens[sample];
    turns.push_back({static_cast<int32_t>(sample), static_cast<int32_t>(after - starts) - 1,
                     position, wanted, sampler.slot(slot)});
  }
  return turns;
}

std::vector<int32_t> FurtherPrograms::step_on(Program& program, const StepInputs& step,
                                              const std::vector<Turn>& turns, Sampler& sampler) {
  const auto count = static_cast<int32_t>(turns.size());
  std::vector<int32_t> tokens, positions, rows(count + 1);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<std::vector<int32_t>> tables(step.tables.size());
  std::vector<const Slot*> slots;
  for (const Turn& turn : turns) {
    tokens.push_back(turn.slot.last());
    positions.push_back(turn.position);
    slots.push_back(&turn.slot);
    for (size_t group = 0; group < tables.size(); ++group) {
      const int32_t* row = step.tables[group] + int64_t{turn.sequence} * step.table_width;
      tables[group].insert(tables[group].end(), row, row + step.table_width);
    }
  }
  make_room(logits_, program.logits_stride(), count);
  StepInputs in;
  in.token_ids = tokens.data();
  in.positions = positions.data();
  in.row_starts = rows.data();
  in.sequences = in.num_rows = in.num_logits = count;
  for (const std::vector<int32_t>& table : tables) in.tables.push_back(table.data());
  in.table_width = step.table_width;
  in.logits_rows = in.hidden_rows = rows.data();
  in.logits_out = reinterpret_cast<float*>(logits_.data());
  program.run(in);
  return sampler.draw_apart(slots, {in.logits_out, program.logits_stride(), count, vocabulary_});
}

}  // namespace octavo
