// Binds ranks that add up over several machines: the links of sums, and the loop of a further node.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bind/parts.h"
#include "nodes/following.h"
#include "nodes/node_sums.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

nb::bytes follow_ranks(FrameLink& link, Program& program, int32_t first, int32_t columns) {
  FrameLink::Frame frame;
  {
    const nb::gil_scoped_release released;
    frame = follow_first_node(link, program, first, columns);
  }
  return message_of(frame);
}

}  // namespace

void bind_nodes(nb::module_& m) {
  nb::class_<PartLink>(m, "PartLink")
      .def("__init__", [](PartLink* made, int descriptor, const nb::bytes& sending,
                          const nb::bytes& receiving) {
        new (made) PartLink(descriptor, {sending.c_str(), sending.size()},
                            {receiving.c_str(), receiving.size()});
      }, "descriptor"_a, "sending"_a, "receiving"_a)
      .def("close", &PartLink::close);
  nb::class_<NodeSums, Sums>(m, "NodeSums")
      .def(nb::init<std::shared_ptr<Ranks>, int, int, NodeSums::Links>(), "ranks"_a, "node"_a,
           "nodes"_a, "links"_a);
  m.def("follow_ranks", &follow_ranks, "link"_a, "program"_a, "first"_a, "columns"_a);
}

}  // namespace octavo
