// Steps of a backend.
#include "step/step_runner.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "step/further_stages.h"

namespace octavo {

namespace {

void make_room(std::shared_ptr<Pages>& pages, int64_t stride, int32_t rows, Ranks* ranks) {
  const size_t bytes = sizeof(float) * stride * rows;
  if (bytes <= pages->bytes()) return;
  pages = std::make_shared<Pages>();  // the old memory is returned before new memory is taken
  pages = std::make_shared<Pages>(pages_for_results(ranks, bytes, are_huge(bytes)));
}

}  // namespace

void StepJob::run() { runner_.begin(*this); }

bool StepJob::can_go_on() const { return !is_sent_ || runner_.has_come(); }

void StepJob::go_on() { runner_.finish(*this); }

void StepJob::continue_from(const StepJob* last) {
  if (!last || last->token_ids.empty() || last->token_ids.size() != last->draws.slots.size() ||
      last->row_starts.size() != last->token_ids.size() + 1 || !last->draws.num_drafts.empty() ||
      !last->echoes.empty() ||
      !last->hidden_rows.empty() || !last->types.empty() || !last->draws.prompts.empty())
    throw std::invalid_argument("a step continues only one in which each sequence had one row");
  token_ids.assign(last->token_ids.size(), StepRunner::kLastSample);
  positions = last->positions;
  for (int32_t& position : positions) ++position;
  row_starts = last->row_starts;
  slots = last->slots;
  tables = last->tables;
  table_width = last->table_width;
  logits_rows = last->logits_rows;
  adapters = last->adapters;
  draws.slots = last->draws.slots;
  draws.first_rows = last->draws.first_rows;
}

void StepJob::grow(size_t group, int32_t row, int32_t column,
                   const std::vector<int32_t>& blocks) {
  const auto end = static_cast<int64_t>(column) + static_cast<int64_t>(blocks.size());
  if (group >= tables.size() || row < 0 || row >= static_cast<int32_t>(slots.size()) ||
      column < 0 || column > table_width || end > INT32_MAX)
    throw std::invalid_argument("blocks for a table that the step does not have");
  if (end > table_width) widen(static_cast<int32_t>(end));
  std::copy(blocks.begin(), blocks.end(),
            tables[group].begin() + static_cast<int64_t>(row) * table_width + column);
}

void StepJob::widen(int32_t width) {
  for (std::vector<int32_t>& table : tables) {
    std::vector<int32_t> wider(slots.size() * width);
    for (size_t row = 0; row < slots.size(); ++row)
      std::copy_n(table.begin() + row * table_width, table_width, wider.begin() + row * width);
    table = std::move(wider);
  }
  table_width = width;
}

StepRunner::StepRunner(const KernelTable& kernels, std::shared_ptr<Program> program,
                       std::shared_ptr<Team> team, int vocabulary, int hidden)
    : program_(std::move(program)),
      team_(std::move(team)),
      sampler_(kernels, *team_, vocabulary),
      further_(vocabulary, team_->ranks()),
      vocabulary_(vocabulary),
      hidden_size_(hidden) {
  for (size_t output = 0; output <= program_->kept_strides().size(); ++output) {
    hidden_memory_.push_back(std::make_shared<Pages>());
    hidden_.push_back({nullptr, 0, 0, hidden_size_});
  }
  if (has_stages()) program_->stages()->start([this] { queue_.wake(); });
}

StepRunner::~StepRunner() {
  if (has_stages()) program_->stages()->end();  // its threads wake the queue
}

bool StepRunner::has_come() const { return program_->stages()->has_come(); }

void StepRunner::begin(StepJob& job) {
  // The steps in other stages still draw for the slots as these are.
  if (num_left_ == 0) change_slots(job);
  move_blocks(job);
  if (!job.token_ids.empty()) resolve(job);
  if (!has_stages()) return finish(job);
  if (!job.token_ids.empty()) {
    StepInputs in = inputs_of(job);
    in.part = Part::BeforeStages;
    program_->run(in);
    job.is_sent_ = true;
  }
  job.is_left_ = true;
  ++num_left_;
}

void StepRunner::finish(StepJob& job) {
  if (job.is_left_) --num_left_;
  if (!job.has_slots_) change_slots(job);
  logits_ = {nullptr, 0, 0, vocabulary_};
  for (Rows& rows : hidden_) rows = {nullptr, 0, 0, hidden_size_};
  if (job.token_ids.empty()) return;
  if (job.is_sent_) program_->stages()->wait();  // not while the team's threads wait for it
  const StepInputs in = forward(job);
  if (job.masks) {
    job.masks->take(job.draws);
    sampler_.check_masks(job.draws);
  }
  sampler_.draw(job.draws, logits_, hidden_[0], job.output);
  for (int32_t sample = 0; sample < static_cast<int32_t>(job.draws.slots.size()); ++sample)
    keep_branch(job, sample);
  further_.run(in, job.draws, sampler_, job.output);
}

void StepRunner::change_slots(StepJob& job) {
  job.has_slots_ = true;
  sampler_.change_slots(job.draws);
  if (job.token_ids.empty()) return;
  sampler_.check(job.draws, static_cast<int32_t>(job.logits_rows.size()),
                 static_cast<int32_t>(job.hidden_rows.size()));
  further_.check(job.draws, job.row_starts.size() - 1);
}

void StepRunner::move_blocks(StepJob& job) {
  for (const auto& [block, group] : job.saves)
    job.saved.push_back(cache_->save_block(block, group));
  for (const auto& [source, destination, group] : job.copies)
    program_->copy_block({source, destination, group});
  if (program_->has_sums() && !(job.saves.empty() && job.loads.empty()))
    throw std::invalid_argument("blocks of ranks that add up are not saved");
  if (has_stages()) {
    if (!job.saves.empty() || !job.loads.empty())
      throw std::invalid_argument("blocks of a pipeline are not saved");
    for (const auto& [source, destination, group] : job.copies)
      program_->stages()->copy(source, destination, group);
  }
  for (const auto& [place, content] : job.loads)
    cache_->load_block(place.block, place.group, content);
  for (AdapterSlot& each : job.adapter_slots)
    program_->put_adapter(each.slot, std::move(each.adapter), each.scale);
}

void StepRunner::keep_branch(const StepJob& job, int32_t sample) {
  if (job.draws.parents.empty()) return;
  const auto sequence_of = [&](int32_t row) {
    const auto after = std::upper_bound(job.row_starts.begin(), job.row_starts.end(), row);
    return after - job.row_starts.begin() - 1;
  };
  const int32_t first_row = job.logits_rows[job.draws.first_rows[sample]];
  const int32_t row = job.logits_rows[job.draws.first_rows[sample] + job.output.at[sample]];
  const int64_t own = sequence_of(first_row), branch = sequence_of(row);
  if (own == branch) return;
  const int32_t blocks = job.positions[row] / cache_->block_size() + 1;
  for (size_t group = 0; group < job.tables.size(); ++group)
    for (int32_t index = 0; index < blocks; ++index) {
      const int32_t source = job.tables[group][branch * job.table_width + index];
      const int32_t destination = job.tables[group][own * job.table_width + index];
      if (source != destination)
        program_->copy_block({source, destination, static_cast<int32_t>(group)});
    }
}

void StepRunner::add_program(std::string owner, std::shared_ptr<Program> program) {
  program->count_with(*program_);
  further_.add(std::move(owner), std::move(program));
}

void StepRunner::use_cache(std::shared_ptr<KvCache> cache) {
  program_->use_cache(cache);
  further_.use_cache(cache);
  cache_ = std::move(cache);
}

void StepRunner::resolve(StepJob& job) const {
  for (size_t s = 0; s + 1 < job.row_starts.size(); ++s)
    for (int32_t row = job.row_starts[s]; row < job.row_starts[s + 1]; ++row) {
      if (row < 0 || row >= static_cast<int32_t>(job.token_ids.size()))
        throw std::invalid_argument("row_starts must go up to the number of rows");
      if (job.token_ids[row] != kLastSample) continue;
      if (s >= job.slots.size())
        throw std::invalid_argument("a token is its slot's last one, and the slot is not given");
      job.token_ids[row] = sampler_.slot(job.slots[s]).last();
    }
}

size_t StepRunner::reserve(int32_t logits_rows, int32_t hidden_rows) {
  Ranks* ranks = program_->ranks();
  make_room(logits_memory_, program_->logits_stride(), logits_rows, ranks);
  make_room(state_memory_, program_->state_stride(), logits_rows, ranks);
  size_t bytes = logits_memory_->bytes() + state_memory_->bytes();
  for (size_t output = 0; output < hidden_.size(); ++output) {
    make_room(hidden_memory_[output], hidden_stride(output), hidden_rows, ranks);
    bytes += hidden_memory_[output]->bytes();
  }
  return bytes;
}

StepInputs StepRunner::inputs_of(const StepJob& job) const {
  StepInputs in;
  in.token_ids = job.token_ids.data();
  in.positions = job.positions.data();
  if (!job.types.empty()) in.types = job.types.data();
  if (!job.adapters.empty()) in.adapters = job.adapters.data();
  in.row_starts = job.row_starts.data();
  in.sequences = static_cast<int32_t>(job.row_starts.size()) - 1;
  for (const std::vector<int32_t>& table : job.tables) in.tables.push_back(table.data());
  in.table_width = job.table_width;
  in.logits_rows = job.logits_rows.data();
  in.hidden_rows = job.hidden_rows.data();
  in.num_rows = static_cast<int32_t>(job.token_ids.size());
  in.num_logits = static_cast<int32_t>(job.logits_rows.size());
  in.num_hidden = static_cast<int32_t>(job.hidden_rows.size());
  in.echoes = job.echoes.data();
  in.num_echoes = static_cast<int32_t>(job.echoes.size());
  return in;
}

StepInputs StepRunner::forward(StepJob& job) {
  StepInputs in = inputs_of(job);
  if (job.is_sent_) in.part = Part::BehindStages;
  reserve(in.num_logits, in.num_hidden);
  in.logits_out = reinterpret_cast<float*>(logits_memory_->data());
  const auto floats_of = [&](size_t output) {
    return reinterpret_cast<float*>(hidden_memory_[output]->data());
  };
  in.state_out = reinterpret_cast<float*>(state_memory_->data());
  in.state_stride = program_->state_stride();
  in.hidden_out = floats_of(0);
  for (size_t output = 1; output < hidden_.size(); ++output)
    in.kept_out.push_back(floats_of(output));
  program_->run(in);
  logits_ = {in.logits_out, program_->logits_stride(), in.num_logits, vocabulary_};
  for (size_t output = 0; output < hidden_.size(); ++output)
    hidden_[output] = {floats_of(output), hidden_stride(output), in.num_hidden, hidden_size_};
  return in;
}

}  // namespace octavo
