// The balance of whole experts among ranks as tests see it, without weights.
#include "experts/balance.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/test/parts.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

void bind_test_balance(nb::module_& m) {
  nb::class_<ExpertBalance>(m, "ExpertBalance")
      .def(nb::init<int, int, int>(), "experts"_a, "ranks"_a, "slots"_a)
      .def("owner", &ExpertBalance::owner, "expert"_a)
      .def("holder", &ExpertBalance::holder, "slot"_a)
      .def("expert_in", &ExpertBalance::expert_in, "slot"_a)
      .def("parts", [](const ExpertBalance& self, const std::vector<int32_t>& starts, int rank) {
        std::vector<std::tuple<int, int, int, int>> found;
        for (const ExpertPart& part : self.parts(starts, rank))
          found.emplace_back(part.expert, part.first, part.rows, part.slot);
        return found;
      }, "starts"_a, "rank"_a)
      .def("count", &ExpertBalance::count, "starts"_a)
      .def("choose", [](ExpertBalance& self) -> std::optional<std::pair<int, int>> {
        const auto chosen = self.choose();
        if (!chosen) return std::nullopt;
        return std::pair<int, int>(chosen->slot, chosen->expert);
      })
      .def("put", &ExpertBalance::put, "slot"_a, "expert"_a);
}

}  // namespace octavo
