// Further programs over the slots of a backend.
#include "step/further_programs.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace octavo {

namespace {

void make_room(Pages& pages, int64_t stride, int32_t rows, Ranks* ranks) {
  const size_t bytes = sizeof(float) * stride * rows;
  if (bytes <= pages.bytes()) return;
  pages = Pages();  // the old memory is returned before new memory is taken
  pages = pages_for_results(ranks, bytes, are_huge(bytes));
}

}  // namespace

void FurtherPrograms::add(std::string owner, std::shared_ptr<Program> program) {
  const auto is_its = [&](const Named& each) { return each.owner == owner; };
  const auto found = std::find_if(owners_.begin(), owners_.end(), is_its);
  if (found != owners_.end())
    found->programs.push_back(std::move(program));
  else
    owners_.push_back({std::move(owner), {std::move(program)}});
}

void FurtherPrograms::use_cache(const std::shared_ptr<KvCache>& cache) {
  for (const Named& each : owners_)
    for (const auto& program : each.programs) program->use_cache(cache);
}

size_t FurtherPrograms::reserve(int32_t rows, int32_t sequences, int32_t positions) {
  size_t bytes = 0;
  for (const Named& each : owners_)
    for (const auto& program : each.programs) {
      // Beside the rows of a step, each sequence has the one of the token that it has just drawn.
      int32_t most = program->reads_states() ? sequences : rows + sequences, logits = sequences;
      if (const int32_t block = program->block().rows; block > 0) {
        most = sequences * block;
        logits = std::min(most - sequences, rows);  // as all drafts have their rows in a step
      }
      bytes += program->reserve(most, logits, 0, sequences, positions);
      make_room(logits_, program->logits_stride(), logits, ranks_);
    }
  return bytes + logits_.bytes();
}

const FurtherPrograms::Named& FurtherPrograms::named(const std::string& owner) const {
  for (const Named& each : owners_)
    if (each.owner == owner) return each;
  throw std::invalid_argument("there is no further program " + owner);
}

void FurtherPrograms::check(const Draws& draws, size_t sequences) const {
  const Ahead& ahead = draws.ahead;
  if (ahead.owner.empty()) return;
  const Program& program = *named(ahead.owner).programs[0];
  const int32_t block = program.block().rows;
  const size_t samples = draws.slots.size(), rows = ahead.token_ids.size();
  if (ahead.num_steps.size() != samples || ahead.num_written.size() != samples)
    throw std::invalid_argument("every sample needs a number of tokens to propose");
  const auto is_none = [](int32_t width) { return width < 1; };
  if (!ahead.widths.empty() && (ahead.widths.size() != samples ||
                                std::any_of(ahead.widths.begin(), ahead.widths.end(), is_none)))
    throw std::invalid_argument("every sample needs one candidate or more");
  if (ahead.positions.size() != rows || ahead.row_starts.size() != sequences + 1 ||
      ahead.row_starts.front() != 0 || ahead.row_starts.back() != static_cast<int32_t>(rows) ||
      !std::is_sorted(ahead.row_starts.begin(), ahead.row_starts.end()))
    throw std::invalid_argument("the sizes of a further program's rows do not agree");
  if ((program.reads_states() || block > 0) && rows > 0)
    throw std::invalid_argument("a program that keeps nothing has no rows of known tokens");
  if (block > 0 && std::any_of(ahead.num_steps.begin(), ahead.num_steps.end(),
                               [&](int32_t steps) { return steps >= block; }))
    throw std::invalid_argument("a block proposes fewer tokens than it has rows");
}

void FurtherPrograms::run(const StepInputs& step, const Draws& draws, Sampler& sampler,
                          DrawOutput& output) {
  if (draws.ahead.owner.empty()) return;
  const auto begun = std::chrono::steady_clock::now();
  const Named& its = named(draws.ahead.owner);
  output.proposals.resize(draws.slots.size());
  std::vector<Turn> turns = turns_of(step, draws, sampler, output);
  if (its.programs[0]->block().rows > 0)
    run_block(*its.programs[0], step, turns, sampler, output);
  else
    run_passes(its, step, draws, turns, sampler, output);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
  output.further_seconds = taken.count();
}

void FurtherPrograms::run_passes(const Named& named, const StepInputs& step, const Draws& draws,
                                 std::vector<Turn>& turns, Sampler& sampler, DrawOutput& output) {
  const auto pass = [&](size_t number, const Rows& rows) {
    Program& program = *named.programs[std::min(number, named.programs.size() - 1)];
    compute(program, step, rows, turns);
    for (size_t at = 0; at < turns.size(); ++at) turns[at].row = static_cast<int32_t>(at);
    go_on(turns, drawn(program, turns, sampler), output);
  };
  const Rows first = lacking(step, draws, turns, output);
  if (!first.sequences.empty()) pass(0, first);
  for (size_t number = 1; !turns.empty(); ++number) {
    Rows rows;
    for (const Turn& turn : turns) {
      rows.add(turn.slot.last(), turn.position);
      rows.end(turn.sequence);
      rows.wanted.push_back(static_cast<int32_t>(rows.token_ids.size()) - 1);
    }
    pass(number, rows);
  }
}

void FurtherPrograms::run_block(Program& program, const StepInputs& step, std::vector<Turn>& turns,
                                Sampler& sampler, DrawOutput& output) {
  if (turns.empty()) return;
  const DraftBlock& block = program.block();
  Rows rows;
  for (Turn& turn : turns) {
    turn.row = static_cast<int32_t>(rows.wanted.size());
    rows.add(turn.slot.last(), turn.position);
    for (int32_t place = 1; place < block.rows; ++place) {
      if (place <= turn.steps_left)
        rows.wanted.push_back(static_cast<int32_t>(rows.token_ids.size()));
      rows.add(block.mask, turn.position + place);
    }
    rows.end(turn.sequence);
  }
  compute(program, step, rows, turns);
  while (!turns.empty()) {
    const auto tokens = drawn(program, turns, sampler);
    for (Turn& turn : turns) ++turn.row;
    go_on(turns, tokens, output);
  }
}

void FurtherPrograms::Rows::end(int32_t sequence) {
  const auto count = static_cast<int32_t>(token_ids.size());
  if (count == starts.back()) return;
  starts.push_back(count);
  sequences.push_back(sequence);
}

void FurtherPrograms::go_on(std::vector<Turn>& turns,
                            const std::vector<std::vector<int32_t>>& tokens, DrawOutput& output) {
  for (size_t at = 0; at < turns.size(); ++at) {
    Turn& turn = turns[at];
    turn.steps_left = tokens[at].empty() ? 0 : turn.steps_left - 1;
    if (tokens[at].empty()) continue;  // no token can be drawn: none is proposed
    turn.slot.append(tokens[at][0]);
    ++turn.position;
    std::vector<int32_t>& proposed = output.proposals[turn.sample];
    proposed.insert(proposed.end(), tokens[at].begin(), tokens[at].end());
    proposed.resize(proposed.size() + turn.width - tokens[at].size(), -1);
  }
  const auto is_over = [](const Turn& turn) { return turn.steps_left == 0; };
  turns.erase(std::remove_if(turns.begin(), turns.end(), is_over), turns.end());
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
    const int32_t width = draws.ahead.widths.empty() ? 1 : draws.ahead.widths[sample];
    const int32_t* starts = step.row_starts;
    const int32_t* after = std::upper_bound(starts, starts + step.sequences + 1, row);
    // The last token known before, the drafts that were accepted, and the token behind them.
    const int32_t count = output.num_tokens[sample];
    turns.push_back({static_cast<int32_t>(sample), static_cast<int32_t>(after - starts) - 1,
                     step.positions[row] + count, draws.first_rows[sample] + output.at[sample],
                     wanted, width, 0, sampler.slot(slot)});
  }
  return turns;
}

FurtherPrograms::Rows FurtherPrograms::lacking(const StepInputs& step, const Draws& draws,
                                               const std::vector<Turn>& turns,
                                               const DrawOutput& output) {
  const Ahead& ahead = draws.ahead;
  Rows rows;
  auto turn = turns.begin();
  for (int32_t sequence = 0; sequence < step.sequences; ++sequence) {
    for (int32_t row = ahead.row_starts[sequence]; row < ahead.row_starts[sequence + 1]; ++row)
      rows.add(ahead.token_ids[row], ahead.positions[row]);
    const bool has_turn = turn != turns.end() && turn->sequence == sequence;
    if (has_turn) {
      const int32_t count = output.num_tokens[turn->sample];
      const int32_t num_written = ahead.num_written[turn->sample];
      const int32_t drafts = draws.num_drafts.empty() ? 0 : draws.num_drafts[turn->sample];
      const int32_t main = output.num_main[turn->sample];
      const int32_t written = num_written >= drafts ? count - 1 : std::clamp(num_written, 0, main);
      const int32_t* tokens = &output.tokens[size_t{1} * turn->sample * output.width];
      for (int32_t at = written; at < count; ++at)
        rows.add(tokens[at], turn->position - (count - 1) + at);
    }
    rows.end(sequence);
    if (!has_turn) continue;
    rows.wanted.push_back(static_cast<int32_t>(rows.token_ids.size()) - 1);
    ++turn;
  }
  if (turn != turns.end()) throw std::invalid_argument("samples must come in the order of rows");
  return rows;
}

void FurtherPrograms::compute(Program& program, const StepInputs& step, const Rows& rows,
                              const std::vector<Turn>& turns) {
  std::vector<std::vector<int32_t>> tables(step.tables.size());
  for (size_t group = 0; group < tables.size(); ++group)
    for (const int32_t sequence : rows.sequences) {
      const int32_t* row = step.tables[group] + int64_t{sequence} * step.table_width;
      tables[group].insert(tables[group].end(), row, row + step.table_width);
    }
  const auto count = static_cast<int32_t>(rows.wanted.size());
  make_room(logits_, program.logits_stride(), count, ranks_);
  StepInputs in;
  in.token_ids = rows.token_ids.data();
  in.positions = rows.positions.data();
  in.row_starts = rows.starts.data();
  in.sequences = static_cast<int32_t>(rows.sequences.size());
  in.num_rows = static_cast<int32_t>(rows.token_ids.size());
  for (const std::vector<int32_t>& table : tables) in.tables.push_back(table.data());
  in.table_width = step.table_width;
  in.logits_rows = in.hidden_rows = rows.wanted.data();
  in.num_logits = count;
  in.logits_out = reinterpret_cast<float*>(logits_.data());
  if (program.reads_states()) {
    if (!step.state_stride || rows.token_ids.size() != turns.size())
      throw std::invalid_argument("a program reads one state for each sample, as the step gives");
    make_room(states_, step.state_stride, count, ranks_);
    float* given = reinterpret_cast<float*>(states_.data());
    for (const Turn& turn : turns) {
      std::copy_n(step.state_out + turn.state * step.state_stride, step.state_stride, given);
      given += step.state_stride;
    }
    in.given = reinterpret_cast<const float*>(states_.data());
    in.state_stride = step.state_stride;
  }
  program.run(in);
  num_logits_ = count;
}

std::vector<std::vector<int32_t>> FurtherPrograms::drawn(const Program& program,
                                                         const std::vector<Turn>& turns,
                                                         Sampler& sampler) const {
  std::vector<const Slot*> slots;
  std::vector<int32_t> widths, rows;
  for (const Turn& turn : turns) {
    slots.push_back(&turn.slot);
    widths.push_back(turn.width);
    rows.push_back(turn.row);
  }
  float* logits = reinterpret_cast<float*>(logits_.data());
  return sampler.draw_apart(slots, widths, rows,
                            {logits, program.logits_stride(), num_logits_, vocabulary_});
}

}  // namespace octavo
