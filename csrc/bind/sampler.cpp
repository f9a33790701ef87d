// Binds the native sampler: rows of logits and parameters in, tokens and log-probabilities out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/parts.h"
#include "runtime/logprobs.h"
#include "runtime/processor.h"
#include "runtime/sampler.h"
#include "runtime/team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

// Rows may lie further apart than their length; they are not copied.
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Drawn = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TokenRows = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Scratch that is reused from call to call. Not thread_local: if there is no memory for that, the C
// library ends the process.
template <typename Scratch>
class Scratches {
 public:
  std::unique_ptr<Scratch> take() {
    const std::lock_guard<std::mutex> mine(turn_);
    if (free_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> one = std::move(free_.back());
    free_.pop_back();
    return one;
  }

  void give(std::unique_ptr<Scratch> one) {
    const std::lock_guard<std::mutex> mine(turn_);
    free_.push_back(std::move(one));
  }

 private:
  std::mutex turn_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

void check_rows(const Logits& logits, const Longs& rows) {
  if (logits.shape(1) == 0) throw std::invalid_argument("the vocabulary is empty");
  if (logits.shape(1) > 1 && logits.stride(1) != 1)
    throw std::invalid_argument("a row of logits must be contiguous");
  for (size_t i = 0; i < rows.shape(0); ++i) {
    if (rows.data()[i] < 0 || rows.data()[i] >= static_cast<int64_t>(logits.shape(0)))
      throw std::invalid_argument("there are no logits of row " + std::to_string(rows.data()[i]));
  }
}

// Calls work(i, scratch) for each of `count` rows, in whichever thread is free. A single row takes
// less time than waking the other threads.
template <typename Scratch, typename Work>
void share_out(Team& team, size_t count, Work work) {
  static Scratches<Scratch> scratches;
  std::atomic<size_t> next{0};
  const auto take = [&](int) {
    std::unique_ptr<Scratch> scratch = scratches.take();
    for (size_t i = next++; i < count; i = next++) work(i, *scratch);
    scratches.give(std::move(scratch));
  };
  if (count > 1) team.run(take);
  else take(0);
}

// Draws token i from row rows[i] with the parameters of slot slots[i]: all other arrays are indexed
// by slot. Returns whether all rows are finite; the token of one that is not is -1.
bool draw_tokens(const std::string& tier, Team& team, Logits logits, Longs rows, Longs slots,
                 Doubles temperatures, Doubles min_p, Doubles top_p, Longs top_k, Longs seeds,
                 Longs num_prompt, Longs num_known, Drawn tokens) {
  const KernelTable& kernels = choose_tier(tier);
  const size_t count = rows.shape(0), all = seeds.shape(0);
  if (slots.shape(0) != count || tokens.shape(0) != count)
    throw std::invalid_argument("every row needs a slot, and an entry in tokens");
  for (const size_t size : {temperatures.shape(0), min_p.shape(0), top_p.shape(0), top_k.shape(0),
                            num_prompt.shape(0), num_known.shape(0)}) {
    if (size != all) throw std::invalid_argument("every parameter needs one entry a slot");
  }
  for (size_t i = 0; i < count; ++i) {
    if (slots.data()[i] < 0 || slots.data()[i] >= static_cast<int64_t>(all))
      throw std::invalid_argument("there is no slot " + std::to_string(slots.data()[i]));
  }
  check_rows(logits, rows);
  const int vocabulary = static_cast<int>(logits.shape(1));
  nb::gil_scoped_release released;
  share_out<SamplerScratch>(team, count, [&](size_t i, SamplerScratch& scratch) {
    const int64_t slot = slots.data()[i];
    const Draw draw{logits.data() + rows.data()[i] * logits.stride(0),
                    temperatures.data()[slot],
                    min_p.data()[slot],
                    top_p.data()[slot],
                    top_k.data()[slot],
                    seeds.data()[slot],
                    num_known.data()[slot] - num_prompt.data()[slot]};
    tokens.data()[i] = static_cast<int32_t>(draw_token(kernels, vocabulary, draw, scratch));
  });
  const int32_t* begin = tokens.data();
  return std::all_of(begin, begin + count, [](int32_t token) { return token >= 0; });
}

// Appends a token to each of these slots, which differ: it goes into the slot's row, after the
// known tokens.
void append_tokens(Longs slots, Drawn tokens, TokenRows known, Tokens num_known) {
  const size_t count = slots.shape(0);
  if (tokens.shape(0) != count) throw std::invalid_argument("every slot needs a token");
  if (known.shape(0) != num_known.shape(0))
    throw std::invalid_argument("every slot needs a row of tokens");
  for (size_t i = 0; i < count; ++i) {
    const int64_t slot = slots.data()[i];
    if (slot < 0 || slot >= static_cast<int64_t>(num_known.shape(0)))
      throw std::invalid_argument("there is no slot " + std::to_string(slot));
    const int64_t at = num_known.data()[slot];
    if (at < 0 || at >= static_cast<int64_t>(known.shape(1)))
      throw std::invalid_argument("slot " + std::to_string(slot) + " has no room for a token");
  }
  for (size_t i = 0; i < count; ++i) {
    const int64_t slot = slots.data()[i];
    const size_t at = static_cast<size_t>(num_known.data()[slot]++);
    known.data()[static_cast<size_t>(slot) * known.shape(1) + at] = tokens.data()[i];
  }
}

void tell_of_rows(const std::string& tier, Team& team, Logits logits, Longs rows, Drawn tokens,
                  TokenRows ids, FloatRows logprobs, Tokens ranks) {
  const KernelTable& kernels = choose_tier(tier);
  const size_t count = rows.shape(0), width = ids.shape(1);
  for (const size_t size : {tokens.shape(0), ids.shape(0), logprobs.shape(0), ranks.shape(0)}) {
    if (size != count) throw std::invalid_argument("every row needs one entry in every array");
  }
  check_rows(logits, rows);
  const int vocabulary = static_cast<int>(logits.shape(1));
  if (width < 1 || width - 1 > logits.shape(1) || logprobs.shape(1) != width)
    throw std::invalid_argument("the arrays hold another number of tokens than was asked for");
  for (size_t i = 0; i < count; ++i) {
    if (tokens.data()[i] < 0 || tokens.data()[i] >= vocabulary)
      throw std::invalid_argument("there is no token " + std::to_string(tokens.data()[i]));
  }
  nb::gil_scoped_release released;
  share_out<LogprobsScratch>(team, count, [&](size_t i, LogprobsScratch& scratch) {
    ranks.data()[i] = describe_row(kernels, logits.data() + rows.data()[i] * logits.stride(0),
                                  vocabulary, tokens.data()[i],
                                  static_cast<int>(width) - 1, ids.data() + i * width,
                                  logprobs.data() + i * width, scratch);
  });
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("draw_tokens", &draw_tokens, "tier"_a, "team"_a, "logits"_a, "rows"_a, "slots"_a,
        "temperatures"_a, "min_p"_a, "top_p"_a, "top_k"_a, "seeds"_a, "num_prompt"_a,
        "num_known"_a, "tokens"_a.noconvert());
  // Outputs are never converted: the results would go into the copy.
  m.def("append_tokens", &append_tokens, "slots"_a, "tokens"_a, "known"_a.noconvert(),
        "num_known"_a.noconvert());
  m.def("tell_of_rows", &tell_of_rows, "tier"_a, "team"_a, "logits"_a, "rows"_a, "tokens"_a,
        "ids"_a.noconvert(), "logprobs"_a.noconvert(), "ranks"_a.noconvert());
}

}  // namespace octavo
