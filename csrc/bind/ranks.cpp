// Binds the ranks of an engine: the messages of the first one, and the loop of the others.
#include "runtime/ranks.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/parts.h"
#include "program/program.h"
#include "runtime/processor.h"
#include "runtime/sums.h"
#include "step/group_step.h"
#include "step/posted_step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

using Programs = std::vector<std::shared_ptr<Program>>;

void send(Ranks& ranks, const nb::bytes& message) {
  const nb::gil_scoped_release released;  // a step may run meanwhile
  const std::unique_lock<std::mutex> turn = ranks.turn();
  std::memcpy(ranks.room(message.size()), message.c_str(), message.size());
  ranks.post(Ranks::Kind::Message, 0, message.size());
  ranks.wait();
}

void compute(const Ranks::Posted& posted, const Ranks& ranks, const Programs& programs) {
  for (const std::shared_ptr<Program>& program : programs)
    if (program->number() == posted.program) {
      if (posted.kind == Ranks::Kind::Step) return program->follow(read_step(posted, ranks));
      if (posted.kind == Ranks::Kind::Copy) return program->follow(read_copy(posted));
      return program->follow(read_adapter(posted));
    }
  throw std::runtime_error("the first rank runs a program that this one lacks");
}

nb::bytes follow(Ranks& ranks, const Programs& programs) {
  std::optional<Ranks::Posted> posted;
  {
    const nb::gil_scoped_release released;
    posted = next_message(
        ranks, [&](const Ranks::Posted& step) { compute(step, ranks, programs); });
  }
  nb::bytes message(reinterpret_cast<const char*>(posted->data), posted->bytes);
  ranks.finish();
  return message;
}

// Unpacks those of some rows of a matrix that this rank has, [count, inputs] floats.
void put_rows(const Ranks& ranks, const Matrix& matrix, int first, int count, uint64_t place) {
  if (first < 0 || count < 0 || count > matrix.outputs - first)
    throw std::out_of_range("no such rows");
  const nb::gil_scoped_release released;
  const KernelTable& kernels = choose_tier("");
  int begin, end;
  share_of(ranks.rank(), ranks.ranks(), num_panels(matrix), begin, end);
  auto* rows = reinterpret_cast<float*>(ranks.at(place));
  const int last = std::min(first + count, end * kPanel);
  for (int row = std::max(first, begin * kPanel); row < last; ++row)
    kernels.unpack_row(matrix, row, rows + static_cast<size_t>(row - first) * matrix.inputs);
}

// Memory for rows of floats in which all ranks put theirs.
struct LentRows {
  Pages pages;
  uint64_t place;
  size_t rows, width;
};

std::unique_ptr<LentRows> lend_rows(Ranks& ranks, size_t rows, size_t width) {
  Pages pages = ranks.lend(std::max<size_t>(1, rows * width * sizeof(float)), false);
  const uint64_t place = ranks.offset_of(pages.data());
  return std::unique_ptr<LentRows>(new LentRows{std::move(pages), place, rows, width});
}

nb::object values_of(nb::object self) {
  const auto& lent = nb::cast<const LentRows&>(self);
  const auto* values = reinterpret_cast<const float*>(lent.pages.data());
  return nb::cast(nb::ndarray<nb::numpy, const float>(values, {lent.rows, lent.width}, self),
                  nb::rv_policy::reference);
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::class_<LentRows>(m, "LentRows")
      .def_ro("place", &LentRows::place)
      .def_prop_ro("values", &values_of);
  nb::class_<Ranks>(m, "Ranks")
      .def(nb::init<int, size_t, int, int, int>(), "descriptor"_a, "bytes"_a, "rank"_a, "ranks"_a,
           "threads"_a)
      .def_prop_ro("rank", &Ranks::rank)
      .def_prop_ro("ranks", &Ranks::ranks)
      .def("send", &send, "message"_a)
      .def("follow", &follow, "programs"_a)
      .def("lend_rows", &lend_rows, "rows"_a, "width"_a, nb::keep_alive<0, 1>())
      .def("put_rows", &put_rows, "matrix"_a, "first"_a, "count"_a, "place"_a)
      .def("end", &Ranks::end, "reason"_a)
      .def_prop_ro("reason", &Ranks::reason);
  nb::class_<Sums>(m, "Sums");
  nb::class_<SharedSums, Sums>(m, "SharedSums")
      .def(nb::init<std::shared_ptr<Ranks>>(), "ranks"_a);
}

}  // namespace octavo
