// Binds steps: the arrays and tuples of octavo/backends/step.py in, tokens and the rest out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/parts.h"
#include "runtime/processor.h"
#include "step/step_runner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using IntArray = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// ---- in ----

template <typename Array>
auto copied(const Array& array) {
  return std::vector<std::remove_cv_t<typename Array::Scalar>>(array.data(),
                                                               array.data() + array.size());
}

std::vector<int32_t> ids_of(nb::handle object) { return copied(nb::cast<IntArray>(object)); }

Sampling kind_of(const std::string& name) {
  const std::pair<const char*, Sampling> kinds[] = {
      {"top_k", Sampling::TopK},         {"min_p", Sampling::MinP},
      {"top_p", Sampling::TopP},         {"typical_p", Sampling::TypicalP},
      {"top_n_sigma", Sampling::TopNSigma}, {"xtc", Sampling::Xtc},
      {"temperature", Sampling::Temperature}, {"mirostat", Sampling::Mirostat}};
  for (const auto& [known, kind] : kinds)
    if (name == known) return kind;
  throw std::invalid_argument("there is no sampler " + name);
}

Stage read_stage(nb::handle from) {
  return {kind_of(nb::cast<std::string>(from[0])), nb::cast<double>(from[1]),
          nb::cast<int64_t>(from[2]),              nb::cast<double>(from[3]),
          nb::cast<double>(from[4]),               nb::cast<double>(from[5])};
}

Dry read_dry(nb::handle from) {
  if (from.is_none()) return {};
  return {nb::cast<double>(from[0]), nb::cast<double>(from[1]), nb::cast<int32_t>(from[2]),
          nb::cast<int32_t>(from[3]), nb::cast<std::vector<int32_t>>(from[4])};
}

Mirostat read_mirostat(nb::handle from) {
  if (from.is_none()) return {};
  return {true, nb::cast<double>(from[0]), nb::cast<double>(from[1]), nb::cast<double>(from[2])};
}

SlotSampling read_sampling(nb::handle from) {
  SlotSampling sampling;
  sampling.tokens = ids_of(from.attr("tokens"));
  sampling.num_prompt = nb::cast<int32_t>(from.attr("num_prompt"));
  sampling.temperature = nb::cast<double>(from.attr("temperature"));
  sampling.min_p = nb::cast<double>(from.attr("min_p"));
  sampling.top_p = nb::cast<double>(from.attr("top_p"));
  sampling.top_k = nb::cast<int64_t>(from.attr("top_k"));
  for (const nb::handle stage : from.attr("chain")) sampling.chain.push_back(read_stage(stage));
  sampling.seed = nb::cast<int64_t>(from.attr("seed"));
  const nb::object allowed = from.attr("allowed");
  sampling.has_allowed = !allowed.is_none();
  if (sampling.has_allowed) sampling.allowed = ids_of(allowed);
  sampling.bad_words = nb::cast<std::vector<std::vector<int32_t>>>(from.attr("bad_words"));
  sampling.min_tokens = nb::cast<int64_t>(from.attr("min_tokens"));
  sampling.stop_ids = ids_of(from.attr("stop_ids"));
  sampling.bias_ids = ids_of(from.attr("bias_ids"));
  sampling.bias = copied(nb::cast<FloatArray>(from.attr("bias")));
  sampling.repetition = nb::cast<float>(from.attr("repetition"));
  sampling.presence = nb::cast<float>(from.attr("presence"));
  sampling.frequency = nb::cast<float>(from.attr("frequency"));
  sampling.penalty_window = nb::cast<int64_t>(from.attr("penalty_window"));
  sampling.dry = read_dry(nb::object(from.attr("dry")));
  sampling.mirostat = read_mirostat(nb::object(from.attr("mirostat")));
  sampling.logprobs = nb::cast<int32_t>(from.attr("logprobs"));
  sampling.logprob_ids = ids_of(from.attr("logprob_ids"));
  sampling.has_processors = nb::len(nb::handle(nb::object(from.attr("processors")))) > 0;
  return sampling;
}

std::vector<BlockCopy> read_copies(const nb::tuple& from) {
  std::vector<BlockCopy> copies;
  for (const nb::handle each : from)
    copies.push_back({nb::cast<int32_t>(each[0]), nb::cast<int32_t>(each[1]),
                      nb::cast<int32_t>(each[2])});
  return copies;
}

BlockPlace read_place(nb::handle from) {
  return {nb::cast<int32_t>(from[0]), nb::cast<int32_t>(from[1])};
}

void read_transfers(const nb::tuple& from, StepJob& job) {
  for (const nb::handle each : from[10]) job.saves.push_back(read_place(each));
  for (const nb::handle each : from[11])
    job.loads.push_back({read_place(each), copied(nb::cast<ByteArray>(each[2]))});
}

void read_batch(const nb::tuple& from, StepJob& job) {
  job.token_ids = ids_of(from[0]);
  job.positions = ids_of(from[1]);
  job.row_starts = ids_of(from[2]);
  const nb::tuple tables = nb::cast<nb::tuple>(from[3]);
  job.logits_rows = ids_of(from[4]);
  job.hidden_rows = ids_of(from[5]);
  job.slots = ids_of(from[6]);
  job.copies = read_copies(nb::cast<nb::tuple>(from[7]));
  job.types = ids_of(from[8]);
  job.adapters = ids_of(from[12]);
  const std::vector<int32_t> echoes = ids_of(from[14]);
  if (echoes.size() % 3) throw std::invalid_argument("an echo has three numbers");
  for (size_t at = 0; at < echoes.size(); at += 3)
    job.echoes.push_back({echoes[at], echoes[at + 1], echoes[at + 2]});
  if (job.token_ids.empty()) return;
  if (job.row_starts.size() < 2 || job.positions.size() != job.token_ids.size() ||
      (!job.types.empty() && job.types.size() != job.token_ids.size()) ||
      (!job.adapters.empty() && job.adapters.size() != job.token_ids.size()))
    throw std::invalid_argument("the sizes of a step's arrays do not agree");
  for (const nb::handle each : tables) {
    const auto table = nb::cast<IntTable>(each);
    if (table.shape(0) + 1 != job.row_starts.size() ||
        (!job.tables.empty() && static_cast<int32_t>(table.shape(1)) != job.table_width))
      throw std::invalid_argument("tables of blocks must be of one shape");
    job.table_width = static_cast<int32_t>(table.shape(1));
    job.tables.push_back(copied(table));
  }
}

void read_adapter_slots(const nb::tuple& from, StepJob& job) {
  for (const nb::handle each : from[13]) {
    const nb::object value = each[1];
    std::shared_ptr<const PackedAdapter> adapter;
    if (!value.is_none()) adapter = nb::cast<OwnedAdapter&>(value).adapter;
    job.adapter_slots.push_back(
        {nb::cast<int32_t>(each[0]), std::move(adapter), nb::cast<float>(each[2])});
  }
}

// The rows and samples of the step before, each a position further, and with new entries of tables.
void read_continued(const nb::tuple& from, StepJob& job, const StepJob* last) {
  job.continue_from(last);
  for (const nb::handle grown : nb::cast<nb::tuple>(from[9])) {
    const auto row = nb::cast<int32_t>(grown[0]), column = nb::cast<int32_t>(grown[1]);
    size_t group = 0;
    for (const nb::handle blocks : nb::cast<nb::tuple>(grown[2]))
      job.grow(group++, row, column, nb::cast<std::vector<int32_t>>(blocks));
  }
  job.copies = read_copies(nb::cast<nb::tuple>(from[7]));
}

void read_samples(const nb::tuple& from, Draws& draws) {
  draws.slots = ids_of(from[2]);
  draws.first_rows = ids_of(from[3]);
  if (!from[4].is_none()) {
    draws.num_drafts = ids_of(from[4]);
    draws.drafts = ids_of(from[5]);
    draws.parents = ids_of(from[11]);
  }
}

void read_draws(const nb::tuple& from, Draws& draws) {
  for (const nb::handle slot : from[0]) draws.freed.push_back(nb::cast<int32_t>(slot));
  for (const nb::handle pair : from[1])
    draws.opened.emplace_back(nb::cast<int32_t>(pair[0]), read_sampling(pair[1]));
  for (const nb::handle part : from[6])
    draws.prompts.push_back({nb::cast<int32_t>(part[0]), nb::cast<int32_t>(part[1]),
                             ids_of(part[2]), nb::cast<int32_t>(part[3])});
  for (const nb::handle part : from[7])
    draws.pools.push_back({nb::cast<int32_t>(part[0]), nb::cast<int32_t>(part[1]),
                           nb::cast<int32_t>(part[2]), nb::cast<bool>(part[3]),
                           nb::cast<bool>(part[4])});
  for (const nb::handle pair : from[9])
    draws.appended.emplace_back(nb::cast<int32_t>(pair[0]),
                                nb::cast<std::vector<int32_t>>(pair[1]));
  if (!from[10].is_none())
    draws.ahead = {nb::cast<std::string>(from[10][0]), ids_of(from[10][1]), ids_of(from[10][6]),
                   ids_of(from[10][2]), ids_of(from[10][3]), ids_of(from[10][4]),
                   ids_of(from[10][5])};
}

// ---- out ----

// An array that keeps the numbers, of `rows` rows if `width` is given.
template <typename T>
nb::object array_of(std::vector<T>&& numbers, size_t rows, std::optional<size_t> width = {}) {
  auto* kept = new std::vector<T>(std::move(numbers));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  const size_t shape[] = {rows, width.value_or(1)};
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), width ? 2 : 1, shape, owner));
}

// The tuple of item(0), item(1), … An error of an item leaves null items, which may be freed.
template <typename Item>
nb::object tuple_of(size_t size, const Item& item) {
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(size)));
  if (!made.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < size; ++i)
    // Not the macro, which the stable ABI lacks.
    PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), item(i).release().ptr());
  return made;
}

nb::list list_of(std::vector<RowLogprobs>& all) {
  nb::list entries;
  for (RowLogprobs& each : all) {
    if (each.rows == 0) continue;
    const size_t rows = each.rows, width = each.width;
    entries.append(nb::make_tuple(each.slot, array_of(std::move(each.ids), rows, width),
                                  array_of(std::move(each.logprobs), rows, width),
                                  array_of(std::move(each.ranks), rows)));
  }
  return entries;
}

// Python's side of a gate. A job shares the gate itself: it may end where Python's lock is not
// held, and the last use of an object of Python needs that lock.
struct OpenGate {
  std::shared_ptr<MaskGate> gate = std::make_shared<MaskGate>();
};

// A step that was submitted.
class SubmittedStep {
 public:
  SubmittedStep(std::shared_ptr<StepRunner> runner, std::shared_ptr<StepJob> job)
      : runner_(std::move(runner)), job_(std::move(job)) {}
  SubmittedStep(const SubmittedStep&) = delete;
  ~SubmittedStep() { runner_->queue().forget(*job_); }

  bool done() const { return job_->is_done(); }

  void wait() {
    nb::gil_scoped_release released;
    runner_->queue().wait(*job_);
  }

  // The tokens of each sample; and None, or a tuple of failures, log-probabilities of samples and
  // of prompts, pooled vectors, proposals, saved blocks, the seconds of further programs and states
  // of samplers. Tokens are tuples, since a new array takes several times as long where the weights
  // have evicted numpy from the caches.
  // The vectors are moved out, so that a step is taken once.
  nb::tuple take() {
    if (!job_->is_done()) throw std::logic_error("a step must be waited for before it is taken");
    if (is_taken_) throw std::logic_error("a step can be taken only once");
    is_taken_ = true;
    DrawOutput& out = job_->output;
    const size_t samples = out.num_tokens.size();
    nb::object rest = nb::none();
    if (!out.failures.empty() || !out.logprobs.empty() || !out.prompts.empty() ||
        !out.pooled.empty() || !out.proposals.empty() || !job_->saved.empty() ||
        out.further_seconds > 0.0 || !out.with_state.empty()) {
      nb::list failures, pooled, saved, states;
      for (const int32_t sample : out.with_state)
        states.append(nb::make_tuple(job_->draws.slots[sample], out.mu[sample]));
      for (const auto& [slot, why] : out.failures)
        failures.append(nb::make_tuple(slot, static_cast<int32_t>(why)));
      for (Pooled& each : out.pooled) {
        const size_t size = each.values.size();
        pooled.append(nb::make_tuple(each.slot, array_of(std::move(each.values), size)));
      }
      const nb::object proposals = tuple_of(out.proposals.size(), [&](size_t sample) {
        return nb::tuple(nb::cast(out.proposals[sample]));
      });
      for (std::vector<uint8_t>& each : job_->saved) {
        const size_t size = each.size();
        saved.append(array_of(std::move(each), size));
      }
      rest = nb::make_tuple(failures, list_of(out.logprobs), list_of(out.prompts), pooled,
                            proposals, saved, out.further_seconds, states);
    }
    const nb::object tokens = tuple_of(samples, [&](size_t sample) {
      return tuple_of(out.num_tokens[sample], [&](size_t n) {
        return nb::cast(out.tokens[sample * out.width + n]);
      });
    });
    return nb::make_tuple(tokens, rest);
  }

  std::vector<int32_t> waiting() const { return job_->output.waiting; }

  // The next row of a sample that waits, after the first rules; None: the sample has failed.
  nb::object rule_row(int32_t sample) {
    std::vector<float> row(runner_->logits().width);
    if (!runner_->sampler().rule_row(job_->draws, checked(sample), runner_->logits(), job_->output,
                                     row.data())) {
      runner_->keep_branch(*job_, sample);
      return nb::none();
    }
    const size_t size = row.size();
    return array_of(std::move(row), size);
  }

  bool resume(int32_t sample, FloatArray row) {
    if (static_cast<int32_t>(row.size()) != runner_->logits().width)
      throw std::invalid_argument("a row must have a logit for every token");
    std::vector<float> ruled = copied(row);
    nb::gil_scoped_release released;
    const bool more = runner_->sampler().resume(job_->draws, checked(sample), runner_->logits(),
                                                ruled.data(), job_->output);
    if (!more) runner_->keep_branch(*job_, sample);
    return more;
  }

  void abandon(int32_t sample) {
    runner_->sampler().abandon(job_->draws, checked(sample), job_->output);
    runner_->keep_branch(*job_, sample);
  }

  nb::object generated(int32_t sample) const {
    std::vector<int32_t> output =
        runner_->sampler().slot(job_->draws.slots[checked(sample)]).output();
    const size_t size = output.size();
    return array_of(std::move(output), size);
  }

 private:
  int32_t checked(int32_t sample) const {
    const std::vector<int32_t>& waiting = job_->output.waiting;
    if (std::find(waiting.begin(), waiting.end(), sample) == waiting.end())
      throw std::invalid_argument("sample " + std::to_string(sample) + " does not wait");
    return sample;
  }

  std::shared_ptr<StepRunner> runner_;
  std::shared_ptr<StepJob> job_;
  bool is_taken_ = false;
};

SubmittedStep* submit(std::shared_ptr<StepRunner> runner, const nb::tuple& batch,
                      const nb::tuple& draws, const OpenGate* masks) {
  auto job = std::make_shared<StepJob>(*runner);
  if (masks) job->masks = masks->gate;
  if (batch[9].is_none()) {
    read_batch(batch, *job);
    read_samples(draws, job->draws);
  } else {
    read_continued(batch, *job, runner->last_job.get());
  }
  read_transfers(batch, *job);
  read_adapter_slots(batch, *job);
  read_draws(draws, job->draws);
  runner->queue().submit(job);
  runner->last_job = job;
  return new SubmittedStep(std::move(runner), std::move(job));
}

nb::object view_of(const Rows& rows, const std::shared_ptr<Pages>& memory) {
  auto* kept = new std::shared_ptr<Pages>(memory);
  const nb::capsule owner(kept,
                          [](void* p) noexcept { delete static_cast<std::shared_ptr<Pages>*>(p); });
  const size_t shape[] = {static_cast<size_t>(rows.count), static_cast<size_t>(rows.width)};
  const int64_t strides[] = {rows.stride, 1};
  return nb::cast(nb::ndarray<nb::numpy, float>(rows.data, 2, shape, owner, strides));
}

}  // namespace

void bind_step(nb::module_& m) {
  m.attr("LAST_SAMPLE") = StepRunner::kLastSample;
  m.attr("NOT_FINITE") = static_cast<int32_t>(Failure::NotFinite);
  m.attr("NO_TOKEN_LEFT") = static_cast<int32_t>(Failure::NoTokenLeft);
  nb::class_<OpenGate>(m, "MaskGate")
      .def(nb::init<>())
      .def("open", [](OpenGate& opened, const Masks& rows) {
        opened.gate->open(copied(rows), rows.shape(1));
      }, "masks"_a);
  nb::class_<SubmittedStep>(m, "SubmittedStep")
      .def("done", &SubmittedStep::done)
      .def("wait", &SubmittedStep::wait)
      .def("take", &SubmittedStep::take)
      .def("waiting", &SubmittedStep::waiting)
      .def("rule_row", &SubmittedStep::rule_row, "sample"_a)
      .def("resume", &SubmittedStep::resume, "sample"_a, "row"_a)
      .def("abandon", &SubmittedStep::abandon, "sample"_a)
      .def("generated", &SubmittedStep::generated, "sample"_a);
  nb::class_<StepRunner>(m, "StepRunner")
      .def("__init__", [](StepRunner* self, const std::string& tier,
                          std::shared_ptr<Program> program, std::shared_ptr<Team> team,
                          int vocabulary, int hidden, nb::handle) {
        new (self) StepRunner(choose_tier(tier), std::move(program), std::move(team), vocabulary,
                              hidden);
      }, "tier"_a, "program"_a, "team"_a, "vocabulary"_a, "hidden"_a,
         "weights"_a, nb::keep_alive<1, 7>())  // a step may still run when nothing else is left
      .def("submit", &submit, "batch"_a, "draws"_a, "masks"_a.none())
      .def("add_program", &StepRunner::add_program, "owner"_a, "program"_a)
      .def("use_cache", &StepRunner::use_cache, "cache"_a)
      .def("reserve", &StepRunner::reserve, "logits_rows"_a, "hidden_rows"_a)
      .def("reserve_further", &StepRunner::reserve_further, "rows"_a, "sequences"_a,
           "positions"_a)
      .def("results", [](const StepRunner& self) {
        return tuple_of(1 + self.hidden().size(), [&](size_t output) {
          return output ? view_of(self.hidden()[output - 1], self.hidden_memory()[output - 1])
                        : view_of(self.logits(), self.logits_memory());
        });
      });
}

}  // namespace octavo
