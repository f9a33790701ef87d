// Binds the trials of products, and what Python must know of them.
#include "choice/trials.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bind/parts.h"
#include "choice/product_kernels.h"
#include "program/program.h"
#include "runtime/processor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

// Tier, format, rows, prefetch distance, and whether panels are cold.
using Described = std::tuple<std::string, Format, int, int, bool>;

std::vector<Trial> made(const std::vector<Described>& described) {
  std::vector<Trial> trials;
  for (const auto& [tier, format, rows, ahead, cold] : described) {
    if (rows < 1) throw std::invalid_argument("a trial needs at least one row");
    trials.push_back({&choose_tier(tier), format, rows, ahead, cold});
  }
  return trials;
}

}  // namespace

void bind_trials(nb::module_& m) {
  nb::class_<Trials>(m, "Trials")
      .def("__init__", [](Trials* self, const std::vector<Described>& trials, double seconds) {
        new (self) Trials(made(trials), seconds);
      }, "trials"_a, "seconds"_a)
      .def("run", &Trials::run, nb::call_guard<nb::gil_scoped_release>())
      .def("begin", [](Trials& self, const Program& program) { self.begin(program.activity()); },
           "program"_a)
      .def("done", &Trials::done)
      .def("best", [](const Trials& self) {
        if (!self.done()) throw std::runtime_error("the trials have not ended");
        return self.best();
      });
  m.attr("ROW_CLASS_ENDS") = nb::make_tuple(kRowClassEnds[0], kRowClassEnds[1], kRowClassEnds[2]);
  m.def("accumulation_order", [](const std::string& tier) { return choose_tier(tier).order; },
        "tier"_a);
  m.attr("DEFAULT_AHEAD") = kDefaultAhead;
}

}  // namespace octavo
