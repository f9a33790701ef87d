// The native sampler as Python sees it: rows of logits and parameters in, tokens out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/parts.h"
#include "runtime/processor.h"
#include "runtime/sampler.h"
#include "runtime/team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Scratch that is kept from call to call. Not thread_local: where there is no memory for that, the
// C library ends the process.
class Scratches {
 public:
  std::unique_ptr<SamplerScratch> take() {
    const std::lock_guard<std::mutex> mine(turn_);
    if (free_.empty()) return std::make_unique<SamplerScratch>();
    std::unique_ptr<SamplerScratch> one = std::move(free_.back());
    free_.pop_back();
    return one;
  }

  void give(std::unique_ptr<SamplerScratch> one) {
    const std::lock_guard<std::mutex> mine(turn_);
    free_.push_back(std::move(one));
  }

 private:
  std::mutex turn_;
  std::vector<std::unique_ptr<SamplerScratch>> free_;
};

void draw_tokens(const std::string& tier, Team& team, Logits logits, Longs rows,
                 Doubles temperatures, Doubles min_p, Doubles top_p, Longs top_k, Longs seeds,
                 Longs positions, Tokens tokens) {
  const KernelTable& kernels = choose_tier(tier);
  const size_t count = rows.shape(0);
  for (const size_t size : {temperatures.shape(0), min_p.shape(0), top_p.shape(0), top_k.shape(0),
                            seeds.shape(0), positions.shape(0), tokens.shape(0)}) {
    if (size != count) throw std::invalid_argument("every parameter needs one entry a row");
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows.data()[i] < 0 || rows.data()[i] >= static_cast<int64_t>(logits.shape(0)))
      throw std::invalid_argument("there are no logits of row " + std::to_string(rows.data()[i]));
  }
  const int vocabulary = static_cast<int>(logits.shape(1));
  if (vocabulary == 0) throw std::invalid_argument("the vocabulary is empty");
  nb::gil_scoped_release released;
  std::atomic<size_t> next{0};
  static Scratches scratches;
  const auto work = [&](int) {
    std::unique_ptr<SamplerScratch> scratch = scratches.take();
    for (size_t i = next++; i < count; i = next++) {
      const Draw draw{logits.data() + rows.data()[i] * vocabulary,
                      temperatures.data()[i], min_p.data()[i], top_p.data()[i],
                      top_k.data()[i],        seeds.data()[i], positions.data()[i]};
      tokens.data()[i] = draw_token(kernels, vocabulary, draw, *scratch);
    }
    scratches.give(std::move(scratch));
  };
  // A row alone is drawn in less than waking the others takes.
  if (count > 1) team.run(work);
  else work(0);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("draw_tokens", &draw_tokens, "tier"_a, "team"_a, "logits"_a, "rows"_a, "temperatures"_a,
        "min_p"_a, "top_p"_a, "top_k"_a, "seeds"_a, "positions"_a, "tokens"_a);
}

}  // namespace octavo
