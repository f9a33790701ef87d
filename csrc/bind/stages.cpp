// Binds the stages of a pipeline: their connections, and the loop of the further ones.
#include "step/stages.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "bind/parts.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

nb::bytes message_of(const FrameLink::Frame& frame) {
  const auto* data = reinterpret_cast<const char*>(frame.content.data());
  if (frame.kind == FrameLink::Kind::Failure)
    throw std::runtime_error(std::string(data, frame.content.size()));
  if (frame.kind != FrameLink::Kind::Message)
    throw std::runtime_error("a frame of a step came where a message should come");
  return nb::bytes(data, frame.content.size());
}

namespace {

void make_sealed(FrameLink* made, int descriptor, const nb::bytes& sending,
                 const nb::bytes& receiving) {
  new (made) FrameLink(descriptor, {sending.c_str(), sending.size()},
                       {receiving.c_str(), receiving.size()});
}

void send_message(FrameLink& link, const nb::bytes& message) {
  const auto* data = reinterpret_cast<const uint8_t*>(message.c_str());
  const size_t bytes = message.size();
  const nb::gil_scoped_release released;
  link.send(FrameLink::Kind::Message, data, bytes);
}

void fail(FrameLink& link, const std::string& why) {
  const nb::gil_scoped_release released;
  link.send(FrameLink::Kind::Failure, reinterpret_cast<const uint8_t*>(why.data()), why.size());
}

nb::bytes receive(FrameLink& link) {
  FrameLink::Frame frame;
  {
    const nb::gil_scoped_release released;
    frame = link.receive();
  }
  return message_of(frame);
}

nb::bytes follow_link(FrameLink& link, Program& program, KvCache* cache) {
  FrameLink::Frame frame;
  KvCache none;
  {
    const nb::gil_scoped_release released;
    frame = follow_steps(link, program, cache ? *cache : none);
  }
  return message_of(frame);
}

}  // namespace

void bind_stages(nb::module_& m) {
  nb::class_<FrameLink>(m, "FrameLink")
      .def(nb::init<int>(), "descriptor"_a)
      .def("__init__", &make_sealed, "descriptor"_a, "sending"_a, "receiving"_a)
      .def("send", &send_message, "message"_a)
      .def("fail", &fail, "why"_a)
      .def("receive", &receive)
      .def("close", &FrameLink::close)
      .def("follow", &follow_link, "program"_a, "cache"_a.none());
}

}  // namespace octavo
