// Binds the ranks of an engine: the messages of the first one, and the loop of the others.
#include "runtime/ranks.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/parts.h"
#include "program/program.h"
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
    if (program->number() == posted.program) return program->follow(read_step(posted, ranks));
  throw std::runtime_error("the first rank runs a program that this one lacks");
}

// Computes steps until a message comes.
Ranks::Posted next_message(Ranks& ranks, const Programs& programs) {
  for (;;) {
    const Ranks::Posted posted = ranks.next();
    if (posted.kind == Ranks::Kind::Message) return posted;
    try {
      compute(posted, ranks, programs);
    } catch (const std::exception& error) {
      ranks.end("rank " + std::to_string(ranks.rank()) + ": " + error.what());
      throw;
    }
    ranks.finish();
  }
}

nb::bytes follow(Ranks& ranks, const Programs& programs) {
  std::optional<Ranks::Posted> posted;
  {
    const nb::gil_scoped_release released;
    posted = next_message(ranks, programs);
  }
  nb::bytes message(reinterpret_cast<const char*>(posted->data), posted->bytes);
  ranks.finish();
  return message;
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::class_<Ranks>(m, "Ranks")
      .def(nb::init<int, size_t, int, int, int>(), "descriptor"_a, "bytes"_a, "rank"_a, "ranks"_a,
           "threads"_a)
      .def_prop_ro("rank", &Ranks::rank)
      .def_prop_ro("ranks", &Ranks::ranks)
      .def("send", &send, "message"_a)
      .def("follow", &follow, "programs"_a)
      .def("end", &Ranks::end, "reason"_a)
      .def_prop_ro("reason", &Ranks::reason);
}

}  // namespace octavo
