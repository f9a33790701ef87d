// The slots of a backend, and the draws of a step.
#include "sampling/sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>

namespace octavo {

namespace {

// What a draw returns instead of a token.
constexpr int32_t kNotFinite = -1;
constexpr int32_t kNoneLeft = -2;

// In `results_`: nothing is wrong.
constexpr int32_t kFine = 0;

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

int32_t num_drafts_of(const Draws& draws, int32_t sample) {
  return draws.num_drafts.empty() ? 0 : draws.num_drafts[sample];
}

void check_rows(int32_t first, int32_t count, int32_t rows) {
  if (first < 0 || count < 0 || first > rows - count)
    refuse("a draw wants row " + std::to_string(first + count - 1) + " of " + std::to_string(rows) +
           " rows");
}

// Throws unless each draft follows an earlier row of its sample.
void check_parents(const Draws& draws) {
  if (draws.parents.size() != draws.drafts.size()) refuse("every draft of a tree needs a parent");
  size_t draft = 0;
  for (const int32_t count : draws.num_drafts)
    for (int32_t row = 0; row < count; ++row, ++draft)
      if (draws.parents[draft] < 0 || draws.parents[draft] > row)
        refuse("a draft follows row " + std::to_string(draws.parents[draft]) +
               " of its sample, which is none before it");
}

}  // namespace

// ---- slots ----

void Sampler::change_slots(Draws& draws) {
  for (const int32_t slot : draws.freed) {
    if (slot < 0) refuse("there is no slot " + std::to_string(slot));
    if (slot < static_cast<int32_t>(slots_.size())) slots_[slot].close();
  }
  const auto check_ids = [&](const std::vector<int32_t>& ids) {
    for (const int32_t id : ids)
      if (id < 0 || id >= vocabulary_)
        refuse("token id " + std::to_string(id) + " is not in the vocabulary of " +
               std::to_string(vocabulary_));
  };
  for (auto& [slot, sampling] : draws.opened) {
    if (slot < 0) refuse("there is no slot " + std::to_string(slot));
    for (const auto* ids : {&sampling.tokens, &sampling.allowed, &sampling.stop_ids,
                            &sampling.bias_ids, &sampling.logprob_ids, &sampling.dry.breakers})
      check_ids(*ids);
    for (const std::vector<int32_t>& word : sampling.bad_words) {
      if (word.empty()) refuse("a bad word has no tokens");
      check_ids(word);
    }
    for (const Stage& stage : sampling.chain)
      if (stage.kind == Sampling::TopK && !(stage.value >= 1.0))
        refuse("top-k keeps one token at least");
    if (sampling.mirostat.is_on &&
        (sampling.chain.empty() || sampling.chain.back().kind != Sampling::Mirostat))
      refuse("mirostat is the last sampler");
    if (sampling.dry.multiplier > 0.0 && (sampling.dry.allowed < 1 || sampling.dry.window < 1))
      refuse("a repetition has one token at least");
    if (sampling.bias.size() != sampling.bias_ids.size()) refuse("every bias needs a token");
    if (sampling.num_prompt < 0 ||
        sampling.num_prompt > static_cast<int32_t>(sampling.tokens.size()))
      refuse("a prompt cannot be longer than the known tokens");
    std::sort(sampling.allowed.begin(), sampling.allowed.end());
    if (slot >= static_cast<int32_t>(slots_.size())) slots_.resize(slot + 1);
    slots_[slot].open(std::move(sampling));
  }
  for (const auto& [slot, tokens] : draws.appended) {
    this->slot(slot);
    check_ids(tokens);
    for (const int32_t token : tokens) slots_[slot].append(token);
  }
}

const Slot& Sampler::slot(int32_t slot) const {
  if (slot < 0 || slot >= static_cast<int32_t>(slots_.size()) || !slots_[slot].is_open())
    refuse("slot " + std::to_string(slot) + " is not open");
  return slots_[slot];
}

void Sampler::check(const Draws& draws, int32_t logits_rows, int32_t hidden_rows) const {
  const size_t samples = draws.slots.size();
  if (draws.first_rows.size() != samples ||
      (!draws.num_drafts.empty() && draws.num_drafts.size() != samples))
    refuse("every sample needs a slot, a row and a number of drafts");
  int64_t drafts = 0;
  for (size_t i = 0; i < samples; ++i) {
    slot(draws.slots[i]);
    const int32_t count = num_drafts_of(draws, static_cast<int32_t>(i));
    check_rows(draws.first_rows[i], count + 1, logits_rows);
    if (count < 0) refuse("a sample cannot have fewer than no drafts");
    drafts += count;
  }
  if (drafts != static_cast<int64_t>(draws.drafts.size()))
    refuse("there are " + std::to_string(draws.drafts.size()) + " drafts, and samples of " +
           std::to_string(drafts));
  if (!draws.parents.empty()) check_parents(draws);
  for (const PromptRows& part : draws.prompts) {
    slot(part.slot);
    check_rows(part.first_row, static_cast<int32_t>(part.targets.size()), logits_rows);
    for (const int32_t target : part.targets)
      if (target < 0 || target >= vocabulary_)
        refuse("there is no token " + std::to_string(target));
  }
  for (const PoolRows& part : draws.pools) {
    slot(part.slot);
    check_rows(part.first_row, part.count, hidden_rows);
  }
}

void Sampler::check_masks(const Draws& draws) const {
  if (draws.mask_words * 32 < static_cast<size_t>(vocabulary_) ||
      draws.masks.size() < draws.mask_words * (draws.slots.size() + draws.drafts.size()))
    refuse("the masks do not have a bit for every token of every row");
}

// ---- a step ----

void Sampler::draw(const Draws& draws, const Rows& logits, const Rows& hidden,
                   DrawOutput& output) {
  reserve(draws, output);
  const size_t samples = draws.slots.size();
  // Each row of a prompt is a piece of work of its own.
  std::vector<std::pair<int32_t, int32_t>> prompt_rows;
  for (size_t part = 0; part < draws.prompts.size(); ++part)
    for (size_t row = 0; row < draws.prompts[part].targets.size(); ++row)
      prompt_rows.emplace_back(part, row);
  const size_t described = samples + prompt_rows.size();
  share_out(described + draws.pools.size(), [&](size_t i, Scratch& scratch) {
    if (i < samples)
      return draw_sample(draws, static_cast<int32_t>(i), logits, output, scratch);
    if (i < described) {
      const auto [part, row] = prompt_rows[i - samples];
      const PromptRows& prompt = draws.prompts[part];
      return describe(logits.row(prompt.first_row + row), prompt.targets[row], nullptr, row,
                      output.prompts[part], scratch);
    }
    const size_t part = i - described;
    is_pool_whole_[part] = pool(draws.pools[part], hidden, output.pooled[part].values);
  });
  collect_failures(draws, output);
}

// Makes the places of all results, so that any thread can fill them.
void Sampler::reserve(const Draws& draws, DrawOutput& output) {
  const size_t samples = draws.slots.size();
  output.width = 1;
  for (const int32_t count : draws.num_drafts) output.width = std::max(output.width, 1 + count);
  output.tokens.assign(samples * output.width, 0);
  output.num_tokens.assign(samples, 0);
  output.at.assign(samples, 0);
  output.num_main.assign(samples, 0);
  output.mu.assign(samples, 0.0);
  results_.assign(samples, kFine);
  logprobs_at_.assign(samples, -1);
  drafts_before_.assign(samples, 0);
  int32_t drafts = 0;
  for (size_t i = 0; i < samples; ++i) {
    drafts_before_[i] = drafts;
    drafts += num_drafts_of(draws, static_cast<int32_t>(i));
    const SlotSampling& sampling = slots_[draws.slots[i]].sampling();
    if (sampling.has_processors) output.waiting.push_back(static_cast<int32_t>(i));
    if (sampling.mirostat.is_on) output.with_state.push_back(static_cast<int32_t>(i));
    if (sampling.logprobs == kNoLogprobs) continue;
    logprobs_at_[i] = static_cast<int32_t>(output.logprobs.size());
    const int32_t rows = 1 + num_drafts_of(draws, static_cast<int32_t>(i));
    const int32_t given = static_cast<int32_t>(sampling.logprob_ids.size());
    output.logprobs.push_back(make_rows(draws.slots[i], rows, given ? given : sampling.logprobs));
    output.logprobs.back().rows = 0;
  }
  for (const PromptRows& part : draws.prompts)
    output.prompts.push_back(
        make_rows(part.slot, static_cast<int32_t>(part.targets.size()), part.count));
  for (const PoolRows& part : draws.pools) output.pooled.push_back({part.slot, {}});
  is_pool_whole_.assign(draws.pools.size(), 1);
}

int32_t Sampler::num_likely(int32_t count) const {
  return count == kAllLogprobs ? vocabulary_ : std::clamp(count, 0, vocabulary_);
}

RowLogprobs Sampler::make_rows(int32_t slot, int32_t rows, int32_t count) const {
  RowLogprobs made{slot, rows, 1 + num_likely(count), {}, {}, {}};
  made.ids.resize(size_t(rows) * made.width);
  made.logprobs.resize(made.ids.size());
  made.ranks.resize(rows);
  return made;
}

// Calls work(i, scratch) for each of `count` pieces, in whichever thread is free. A single piece
// takes less time than waking the other threads.
void Sampler::share_out(size_t count, const std::function<void(size_t, Scratch&)>& work) {
  std::atomic<size_t> next{0};
  const auto take = [&](int worker) {
    for (size_t i = next++; i < count; i = next++) work(i, scratch_[worker]);
  };
  if (count > 1) team_.run(take);
  else if (count == 1) take(0);
}

// ---- samples ----

void Sampler::draw_sample(const Draws& draws, int32_t sample, const Rows& logits,
                          DrawOutput& output, Scratch& scratch) {
  const Slot& slot = slots_[draws.slots[sample]];
  if (slot.sampling().has_processors) return;
  int32_t token;
  do {
    float* row = logits.row(row_of(draws, sample, output));
    token = draw_row(slot, mask_of(draws, sample, output), row, scratch);
  } while (advance(draws, sample, token, logits, output, scratch));
}

std::vector<std::vector<int32_t>> Sampler::draw_apart(const std::vector<const Slot*>& slots,
                                                      const std::vector<int32_t>& widths,
                                                      const std::vector<int32_t>& rows,
                                                      const Rows& logits) {
  std::vector<std::vector<int32_t>> tokens(slots.size());
  share_out(slots.size(), [&](size_t i, Scratch& scratch) {
    float* row = logits.row(rows[i]);
    int32_t token = draw_row(*slots[i], nullptr, row, scratch);
    if (widths[i] > 1) scratch.mask.assign((size_t(vocabulary_) + 31) / 32, ~uint32_t{0});
    while (token >= 0) {
      tokens[i].push_back(token);
      if (static_cast<int32_t>(tokens[i].size()) >= widths[i]) break;
      scratch.mask[token / 32] &= ~(uint32_t{1} << (token % 32));
      token = draw_row(*slots[i], scratch.mask.data(), row, scratch);
    }
  });
  return tokens;
}

int32_t Sampler::row_of(const Draws& draws, int32_t sample, const DrawOutput& output) const {
  return draws.first_rows[sample] + output.at[sample];
}

int32_t Sampler::next_row(const Draws& draws, int32_t sample, int32_t token,
                          const DrawOutput& output) const {
  const int32_t count = num_drafts_of(draws, sample), at = output.at[sample];
  const int32_t first = drafts_before_[sample];
  if (draws.parents.empty()) return at < count && draws.drafts[first + at] == token ? at + 1 : 0;
  for (int32_t draft = at; draft < count; ++draft)
    if (draws.parents[first + draft] == at && draws.drafts[first + draft] == token)
      return draft + 1;
  return 0;
}

const uint32_t* Sampler::mask_of(const Draws& draws, int32_t sample,
                                 const DrawOutput& output) const {
  if (draws.masks.empty()) return nullptr;
  const size_t row = size_t(sample) + drafts_before_[sample] + output.at[sample];
  const uint32_t* mask = draws.masks.data() + row * draws.mask_words;
  return allows_all(mask, vocabulary_) ? nullptr : mask;
}

bool Sampler::advance(const Draws& draws, int32_t sample, int32_t token, const Rows& logits,
                      DrawOutput& output, Scratch& scratch) {
  Slot& slot = slots_[draws.slots[sample]];
  const int32_t at = output.num_tokens[sample];
  if (token < 0) {
    results_[sample] = token;
    token = 0;
  } else if (logprobs_at_[sample] >= 0) {
    RowLogprobs& into = output.logprobs[logprobs_at_[sample]];
    const float* row = logits.row(row_of(draws, sample, output));
    if (const uint32_t* mask = mask_of(draws, sample, output)) {
      scratch.copy.assign(row, row + vocabulary_);
      EditedRow masked(scratch.undo);
      masked.begin(scratch.copy.data(), false);
      forbid_masked(mask, vocabulary_, masked);
      row = scratch.copy.data();
    }
    const std::vector<int32_t>& given = slot.sampling().logprob_ids;
    describe(row, token, given.empty() ? nullptr : given.data(), into.rows++, into, scratch);
  }
  slot.append(token);
  if (slot.sampling().mirostat.is_on) {
    if (results_[sample] == kFine) slot.follow_surprise(scratch.draw.surprise);
    output.mu[sample] = slot.mu();
  }
  output.tokens[size_t(sample) * output.width + at] = token;
  const int32_t count = ++output.num_tokens[sample];
  const int32_t next = next_row(draws, sample, token, output);
  if (results_[sample] != kFine || next == 0) return false;
  if (next == count && output.num_main[sample] == count - 1) output.num_main[sample] = count;
  output.at[sample] = next;
  return true;
}

int32_t Sampler::draw_row(const Slot& slot, const uint32_t* mask, float* logits,
                          Scratch& scratch) const {
  const SlotSampling& sampling = slot.sampling();
  const bool by_candidates = find_candidates(sampling, mask, vocabulary_, scratch.candidates);
  // Nothing else reads the logits of tokens that are no candidates.
  if (by_candidates && kernels_.arg_max(logits, vocabulary_) < 0) return kNotFinite;
  EditedRow row(scratch.undo);
  if (!by_candidates && (mask || sampling.has_allowed)) {
    // So many edits take longer than a copy.
    scratch.copy.assign(logits, logits + vocabulary_);
    row.begin(scratch.copy.data(), false);
  } else {
    row.begin(logits, true);
  }
  apply_first_rules(slot, vocabulary_, by_candidates, row);
  const int32_t token = draw_ruled(slot, mask, by_candidates, row, scratch);
  row.restore();
  return token;
}

// Draws from a row to which the first rules were applied.
int32_t Sampler::draw_ruled(const Slot& slot, const uint32_t* mask, bool by_candidates,
                            EditedRow& row, Scratch& scratch) const {
  apply_last_rules(slot, mask, vocabulary_, by_candidates, row, scratch.dry);
  if (row.is_damaged()) return kNotFinite;
  if (by_candidates && scratch.candidates.empty()) return kNoneLeft;
  const SlotSampling& sampling = slot.sampling();
  const Draw draw{row.logits(),
                  by_candidates ? &scratch.candidates : nullptr,
                  sampling.temperature,
                  sampling.min_p,
                  sampling.top_p,
                  sampling.top_k,
                  sampling.seed,
                  slot.num_output(),
                  slot.has_filters(),
                  sampling.chain,
                  slot.mu(),
                  vocabulary_};
  const int32_t token = draw_token(kernels_, vocabulary_, draw, scratch.draw);
  if (token < 0) return kNotFinite;
  return row.at(token) == kForbidden ? kNoneLeft : token;
}

void Sampler::describe(const float* logits, int32_t token, const int32_t* given, int32_t row,
                       RowLogprobs& into, Scratch& scratch) const {
  const size_t at = size_t(row) * into.width;
  into.ranks[row] = static_cast<int32_t>(
      describe_row(kernels_, logits, vocabulary_, token, into.width - 1, given,
                   into.ids.data() + at, into.logprobs.data() + at, scratch.logprobs));
}

// ---- samples with processors ----

bool Sampler::rule_row(const Draws& draws, int32_t sample, const Rows& logits, DrawOutput& output,
                       float* ruled) {
  const Slot& slot = slots_[draws.slots[sample]];
  const float* raw = logits.row(row_of(draws, sample, output));
  Scratch& scratch = scratch_[0];
  if (kernels_.arg_max(raw, vocabulary_) < 0) {
    advance(draws, sample, kNotFinite, logits, output, scratch);
    collect_failures(draws, output);
    return false;
  }
  std::copy_n(raw, vocabulary_, ruled);
  EditedRow row(scratch.undo);
  row.begin(ruled, false);
  apply_first_rules(slot, vocabulary_, false, row);
  std::replace(ruled, ruled + vocabulary_, kForbidden, -INFINITY);
  return true;
}

bool Sampler::resume(const Draws& draws, int32_t sample, const Rows& logits, float* ruled,
                     DrawOutput& output) {
  Scratch& scratch = scratch_[0];
  std::replace(ruled, ruled + vocabulary_, -INFINITY, kForbidden);
  EditedRow row(scratch.undo);
  row.begin(ruled, false);
  const int32_t token = draw_ruled(slots_[draws.slots[sample]], mask_of(draws, sample, output),
                                   false, row, scratch);
  const bool more = advance(draws, sample, token, logits, output, scratch);
  if (token < 0 || !output.failures.empty()) collect_failures(draws, output);
  return more;
}

void Sampler::abandon(const Draws& draws, int32_t sample, DrawOutput& output) {
  slots_[draws.slots[sample]].append(0);
  output.tokens[size_t(sample) * output.width + output.num_tokens[sample]++] = 0;
}

// ---- pooled vectors ----

bool Sampler::pool(const PoolRows& part, const Rows& hidden, std::vector<float>& finished) {
  if (part.apart) {
    for (int32_t row = part.first_row; row < part.first_row + part.count; ++row)
      finished.insert(finished.end(), hidden.row(row), hidden.row(row) + hidden.width);
    return std::all_of(finished.begin(), finished.end(), [](float x) { return std::isfinite(x); });
  }
  Slot& slot = slots_[part.slot];
  slot.pool.resize(hidden.width, 0.0);
  for (int32_t row = part.first_row; row < part.first_row + part.count; ++row)
    for (int32_t i = 0; i < hidden.width; ++i) slot.pool[i] += hidden.row(row)[i];
  slot.num_pooled += part.count;
  if (!part.is_last) return true;
  bool is_whole = slot.num_pooled > 0;
  for (const double sum : slot.pool) {
    finished.push_back(static_cast<float>(sum / static_cast<double>(slot.num_pooled)));
    is_whole = is_whole && std::isfinite(finished.back());
  }
  return is_whole;
}

// ---- failures ----

// Moves the results that failed out of the output, and their slots into its failures.
void Sampler::collect_failures(const Draws& draws, DrawOutput& output) {
  const auto fail = [&](int32_t slot, Failure why) {
    for (const auto& [failed, _] : output.failures)
      if (failed == slot) return;
    output.failures.emplace_back(slot, why);
  };
  const auto drop_if = [](auto& results, auto is_bad) {
    results.erase(std::remove_if(results.begin(), results.end(), is_bad), results.end());
  };
  drop_if(output.prompts, [&](const RowLogprobs& part) {
    const bool is_bad = std::count(part.ranks.begin(), part.ranks.end(), 0) > 0;
    if (is_bad) fail(part.slot, Failure::NotFinite);
    return is_bad;
  });
  for (size_t part = 0; part < draws.pools.size(); ++part)
    if (!is_pool_whole_[part]) fail(draws.pools[part].slot, Failure::NotFinite);
  for (size_t i = 0; i < results_.size(); ++i)
    if (results_[i] != kFine)
      fail(draws.slots[i],
           results_[i] == kNoneLeft ? Failure::NoTokenLeft : Failure::NotFinite);
  const auto has_failed = [&](int32_t slot) {
    return std::any_of(output.failures.begin(), output.failures.end(),
                       [&](const auto& failure) { return failure.first == slot; });
  };
  // What a failed sample drew last means nothing; the drafts before it were accepted.
  for (size_t i = 0; i < results_.size(); ++i)
    if (logprobs_at_[i] >= 0 && has_failed(draws.slots[i])) {
      RowLogprobs& each = output.logprobs[logprobs_at_[i]];
      each.rows = std::min(each.rows, std::max(0, output.num_tokens[i] - 1));
    }
  drop_if(output.pooled, [&](const Pooled& each) {
    return each.values.empty() || has_failed(each.slot);
  });
}

}  // namespace octavo
