// The native sampler as Python sees it: rows of logits and parameters in, tokens out, and what
// requests are told of them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "bind/parts.h"
#include "runtime/logprobs.h"
#include "runtime/processor.h"
#include "runtime/sampler.h"
#include "runtime/team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

// Rows may be apart by more than a row's length: nothing is copied for that.
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TokenRows = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_rows(const Logits& logits, const Longs& rows) {
  if (logits.shape(1) == 0) throw std::invalid_argument("the vocabulary is empty");
  if (logits.shape(1) > 1 && logits.stride(1) != 1)
    throw std::invalid_argument("a row of logits must be contiguous");
  for (size_t i = 0; i < rows.shape(0); ++i) {
    if (rows.data()[i] < 0 || rows.data()[i] >= static_cast<int64_t>(logits.shape(0)))
      throw std::invalid_argument("there are no logits of row " + std::to_string(rows.data()[i]));
  }
}

// Calls work(i) for each of `count` rows, whoever is free. One that is alone is done in less than
// waking the others takes.
template <typename Work>
void share_out(Team& team, size_t count, Work work) {
  std::atomic<size_t> next{0};
  const auto take = [&](int) {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  if (count > 1) team.run(take);
  else take(0);
}

void draw_tokens(const std::string& tier, Team& team, Logits logits, Longs rows,
                 Doubles temperatures, Doubles min_p, Doubles top_p, Longs top_k, Longs seeds,
                 Longs positions, Tokens tokens) {
  const KernelTable& kernels = choose_tier(tier);
  const size_t count = rows.shape(0);
  for (const size_t size : {temperatures.shape(0), min_p.shape(0), top_p.shape(0), top_k.shape(0),
                            seeds.shape(0), positions.shape(0), tokens.shape(0)}) {
    if (size != count) throw std::invalid_argument("every parameter needs one entry a row");
  }
  check_rows(logits, rows);
  const int vocabulary = static_cast<int>(logits.shape(1));
  nb::gil_scoped_release released;
  share_out(team, count, [&](size_t i) {
    static thread_local SamplerScratch scratch;
    const Draw draw{logits.data() + rows.data()[i] * logits.stride(0),
                    temperatures.data()[i], min_p.data()[i], top_p.data()[i],
                    top_k.data()[i],        seeds.data()[i], positions.data()[i]};
    tokens.data()[i] = draw_token(kernels, vocabulary, draw, scratch);
  });
}

void tell_of_rows(const std::string& tier, Team& team, Logits logits, Longs rows, Longs tokens,
                  TokenRows ids, FloatRows logprobs, Tokens ranks) {
  const KernelTable& kernels = choose_tier(tier);
  const size_t count = rows.shape(0), width = ids.shape(1);
  for (const size_t size : {tokens.shape(0), ids.shape(0), logprobs.shape(0), ranks.shape(0)}) {
    if (size != count) throw std::invalid_argument("every row needs one entry in every array");
  }
  check_rows(logits, rows);
  const int vocabulary = static_cast<int>(logits.shape(1));
  if (width < 1 || width - 1 > logits.shape(1) || logprobs.shape(1) != width)
    throw std::invalid_argument("there is room for another number of tokens than there are");
  for (size_t i = 0; i < count; ++i) {
    if (tokens.data()[i] < 0 || tokens.data()[i] >= vocabulary)
      throw std::invalid_argument("there is no token " + std::to_string(tokens.data()[i]));
  }
  nb::gil_scoped_release released;
  share_out(team, count, [&](size_t i) {
    static thread_local LogprobsScratch scratch;
    ranks.data()[i] = tell_of_row(kernels, logits.data() + rows.data()[i] * logits.stride(0),
                                  vocabulary, static_cast<int32_t>(tokens.data()[i]),
                                  static_cast<int>(width) - 1, ids.data() + i * width,
                                  logprobs.data() + i * width, scratch);
  });
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("draw_tokens", &draw_tokens, "tier"_a, "team"_a, "logits"_a, "rows"_a, "temperatures"_a,
        "min_p"_a, "top_p"_a, "top_k"_a, "seeds"_a, "positions"_a, "tokens"_a);
  m.def("tell_of_rows", &tell_of_rows, "tier"_a, "team"_a, "logits"_a, "rows"_a, "tokens"_a,
        "ids"_a, "logprobs"_a, "ranks"_a);
}

}  // namespace octavo
