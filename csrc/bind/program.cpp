// Binds programs: instructions as plain structs.
#include "program/program.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "bind/parts.h"
#include "runtime/processor.h"
#include "nodes/further_nodes.h"
#include "step/further_stages.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

using Order = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void set_order(Instruction& instruction, const Order& order) {
  instruction.order.assign(order.data(), order.data() + order.size());
}

// A pointer to weights that a Store holds; in Python an address, 0 for none.
template <typename Struct>
auto pointer(const float* Struct::*member) {
  return [member](Struct& self, uintptr_t address) {
    self.*member = reinterpret_cast<const float*>(address);
  };
}

template <typename Struct>
auto address(const float* Struct::*member) {
  return [member](const Struct& self) { return reinterpret_cast<uintptr_t>(self.*member); };
}

void bind_enums(nb::module_& m) {
  nb::enum_<Space>(m, "Space")
      .value("Tokens", Space::Tokens).value("Logits", Space::Logits)
      .value("Hidden", Space::Hidden).value("Pairs", Space::Pairs)
      .value("Wanted", Space::Wanted);
  nb::enum_<Ref::Where>(m, "Where")
      .value("Nothing", Ref::Where::Nothing).value("Scratch", Ref::Where::Scratch)
      .value("LogitsOut", Ref::Where::LogitsOut).value("HiddenOut", Ref::Where::HiddenOut)
      .value("KeptOut", Ref::Where::KeptOut).value("StateOut", Ref::Where::StateOut);
  nb::enum_<Activation>(m, "Activation")
      .value("None_", Activation::None).value("Silu", Activation::Silu)
      .value("GeluErf", Activation::GeluErf).value("GeluTanh", Activation::GeluTanh)
      .value("Relu", Activation::Relu).value("Relu2", Activation::Relu2)
      .value("ClampedSwiglu", Activation::ClampedSwiglu).value("Sigmoid", Activation::Sigmoid);
  nb::enum_<CacheFormat>(m, "CacheFormat")
      .value("F32", CacheFormat::F32).value("BF16", CacheFormat::BF16)
      .value("Int8", CacheFormat::Int8)
      .value("E4M3", CacheFormat::E4M3)
      .value("E5M2", CacheFormat::E5M2)
      .value("Int4", CacheFormat::Int4);
  nb::enum_<RouteShape::Scores>(m, "Scores")
      .value("Softmax", RouteShape::Scores::Softmax).value("Chosen", RouteShape::Scores::Chosen)
      .value("Sigmoid", RouteShape::Scores::Sigmoid);
  nb::enum_<Op> ops(m, "Op");
  constexpr Op all[] = {Op::RopeTables, Op::Embed, Op::Select, Op::Norm, Op::Prepare, Op::Gemm,
                        Op::Attention, Op::Activate, Op::Gate, Op::Add, Op::Multiply, Op::Scale,
                        Op::SoftCap, Op::Route, Op::SortPairs, Op::ExpertsIn, Op::ExpertsOut,
                        Op::AddExperts, Op::HeadGemm, Op::Convolve, Op::Shrink, Op::WholeGemm,
                        Op::Keep, Op::KeepKV, Op::Recall, Op::Spread, Op::Given, Op::Relay,
                        Op::AllReduce};
  constexpr const char* names[] = {"RopeTables", "Embed", "Select", "Norm", "Prepare", "Gemm",
                                   "Attention", "Activate", "Gate", "Add", "Multiply", "Scale",
                                   "SoftCap", "Route", "SortPairs", "ExpertsIn", "ExpertsOut",
                                   "AddExperts", "HeadGemm", "Convolve", "Shrink", "WholeGemm",
                                   "Keep", "KeepKV", "Recall", "Spread", "Given", "Relay",
                                   "AllReduce"};
  for (size_t index = 0; index < std::size(all); ++index) ops.value(names[index], all[index]);
}

void bind_structs(nb::module_& m) {
  nb::class_<Ref>(m, "Ref")
      .def(nb::init<>())
      .def("__init__", [](Ref* self, Ref::Where where, Space space, int64_t offset, int32_t first,
                          int32_t width, int64_t stride) {
        new (self) Ref{where, space, offset, first, width, stride};
      });
  nb::class_<Prepared>(m, "Prepared")
      .def("__init__", [](Prepared* self, Space space, Format format, int32_t inputs,
                          int64_t offset) { new (self) Prepared{space, format, inputs, offset}; });
  nb::class_<NormShape>(m, "NormShape")
      .def(nb::init<>())
      .def_prop_rw("weight", address(&NormShape::weight), pointer(&NormShape::weight))
      .def_prop_rw("bias", address(&NormShape::bias), pointer(&NormShape::bias))
      .def_rw("eps", &NormShape::eps)
      .def_rw("offset", &NormShape::offset)
      .def_rw("heads", &NormShape::heads)
      .def_rw("is_rms", &NormShape::is_rms)
      .def_rw("weight_a_head", &NormShape::weight_a_head);
  nb::class_<Piece>(m, "Piece")
      .def("__init__", [](Piece* self, const Matrix& matrix, int32_t first_output, uintptr_t bias,
                          bool gated, int32_t adapted) {
        new (self) Piece{matrix, first_output, reinterpret_cast<const float*>(bias), gated,
                         adapted};
      }, "matrix"_a, "first_output"_a, "bias"_a, "gated"_a, "adapted"_a = -1);
  nb::class_<RouteShape>(m, "RouteShape")
      .def("__init__", [](RouteShape* self, int32_t experts, int32_t top_k,
                          RouteShape::Scores scores, bool normalise, float scale) {
        new (self) RouteShape{experts, top_k, scores, normalise, scale, 1, 1, 1, nullptr};
      })
      .def_rw("groups", &RouteShape::groups).def_rw("top_groups", &RouteShape::top_groups)
      .def_rw("group_best", &RouteShape::group_best)
      .def_prop_rw("bias", address(&RouteShape::bias), pointer(&RouteShape::bias));
  nb::class_<ConvolveShape>(m, "ConvolveShape")
      .def(nb::init<>())
      .def_prop_rw("weight", address(&ConvolveShape::weight), pointer(&ConvolveShape::weight))
      .def_prop_rw("bias", address(&ConvolveShape::bias), pointer(&ConvolveShape::bias))
      .def_rw("kernel", &ConvolveShape::kernel);
  nb::class_<AttentionShape>(m, "AttentionShape")
      .def("__init__", [](AttentionShape* self, int32_t heads, int32_t kv_heads, int32_t head_dim,
                          float scale, float softcap, int32_t window, uintptr_t sinks) {
        new (self) AttentionShape{heads, kv_heads, head_dim, scale, softcap, window,
                                  reinterpret_cast<const float*>(sinks), false, nullptr, 0, 0};
      })
      .def_rw("latent", &AttentionShape::latent)
      .def_rw("skipped", &AttentionShape::skipped)
      .def_rw("both_ways", &AttentionShape::both_ways)
      .def_prop_rw("distances", address(&AttentionShape::distances),
                   pointer(&AttentionShape::distances))
      .def_rw("reach", &AttentionShape::reach);
  nb::class_<CacheGroup>(m, "CacheGroup")
      .def("__init__", [](CacheGroup* self, int32_t layers, int32_t kv_heads, int32_t head_dim,
                          int64_t block_bytes) {
        new (self) CacheGroup{layers, kv_heads, head_dim, 0, 0, block_bytes};
      }, "layers"_a, "kv_heads"_a, "head_dim"_a, "block_bytes"_a)
      .def_rw("latent", &CacheGroup::latent)
      .def_rw("state", &CacheGroup::state);
  nb::class_<Instruction>(m, "Instruction")
      .def(nb::init<>())
      .def_rw("op", &Instruction::op).def_rw("barrier", &Instruction::barrier)
      .def_rw("adapted_barrier", &Instruction::adapted_barrier)
      .def_rw("low", &Instruction::low).def_rw("product", &Instruction::product)
      .def_rw("space", &Instruction::space).def_rw("x", &Instruction::x)
      .def_rw("y", &Instruction::y).def_rw("out", &Instruction::out)
      .def_rw("norm", &Instruction::norm).def_rw("prepared", &Instruction::prepared)
      .def_prop_rw("order", [](const Instruction& i) { return i.order; }, &set_order)
      .def_rw("activation", &Instruction::activation).def_rw("factor", &Instruction::factor)
      .def_rw("cap", &Instruction::cap).def_rw("by_position", &Instruction::by_position)
      .def_rw("by_type", &Instruction::by_type).def_rw("first_row", &Instruction::first_row)
      .def_rw("passed", &Instruction::passed).def_rw("convolve", &Instruction::convolve)
      .def_rw("pieces", &Instruction::pieces).def_rw("values", &Instruction::values)
      .def_rw("k_norm", &Instruction::k_norm).def_rw("attention", &Instruction::attention)
      .def_rw("rope", &Instruction::rope).def_rw("group", &Instruction::group)
      .def_rw("layer", &Instruction::layer).def_rw("route", &Instruction::route)
      .def_rw("chosen", &Instruction::chosen)
      .def_rw("are_whole", &Instruction::are_whole)
      .def_rw("redundant", &Instruction::redundant);
}

}  // namespace

void bind_program(nb::module_& m) {
  bind_enums(m);
  bind_structs(m);
  nb::class_<KvCache>(m, "KvCache")
      .def("__init__", [](KvCache* self, CacheFormat format, const std::vector<CacheGroup>& groups,
                          int64_t pages, int64_t page_bytes, int block_size, Team& team) {
        new (self) KvCache(format, groups, pages, page_bytes, block_size, team.ranks());
      }, "format"_a, "groups"_a, "pages"_a, "page_bytes"_a, "block_size"_a, "team"_a)
      .def("saved_bytes", &KvCache::saved_bytes, "group"_a)
      .def("take", [](KvCache& self, Team& team) {
        team.run([&](int part) { self.take(part, team.size()); });
      }, "team"_a, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Program>(m, "Program")
      .def("__init__", [](Program* self, const std::string& tier, std::shared_ptr<Team> team,
                          std::shared_ptr<Sums> sums) {
        new (self) Program(choose_tier(tier), std::move(team), std::move(sums));
      }, "tier"_a, "team"_a, "sums"_a = nb::none())
      .def("append", &Program::append)
      .def("copy_experts_after", &Program::copy_experts_after, "steps"_a)
      .def_prop_ro("redundant_experts", [](const Program& self) {
        std::vector<std::tuple<int, int, int>> found;
        for (const Experts::Redundant& each : self.redundant_experts())
          found.emplace_back(each.mixture, each.expert, each.rank);
        return found;
      })
      .def("set_stages", [](Program& self, std::vector<std::shared_ptr<FrameLink>> links) {
        self.set_stages(std::make_shared<FurtherStages>(std::move(links)));
      }, "links"_a)
      .def("set_nodes", [](Program& self, std::vector<std::shared_ptr<FrameLink>> links,
                           int32_t columns) {
        self.set_nodes(std::make_shared<FurtherNodes>(std::move(links), columns));
      }, "links"_a, "columns"_a)
      .def("add_rope", &Program::add_rope, "frequencies"_a, "interleaved"_a, "magnitude"_a)
      .def("make_adapter_slots", &Program::make_adapter_slots, "slots"_a)
      .def("set_block", [](Program& program, int32_t rows, int32_t mask) {
            if (rows < 2) throw std::invalid_argument("a block has two rows at least");
            program.set_block({rows, mask});
          }, "rows"_a, "mask"_a)
      .def("set_scratch", &Program::set_scratch, "space"_a, "row_bytes"_a, "prepared_row_bytes"_a)
      .def("choose", [](Program& self, Format format, int row_class, const std::string& tier,
                        int ahead) {
        self.choose(format, row_class, choose_tier(tier), ahead);
      }, "format"_a, "row_class"_a, "tier"_a, "ahead"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("set_profiling", &Program::set_profiling, "on"_a)
      .def_prop_ro("seconds", &Program::seconds)
      .def_prop_ro("waits", &Program::waits)
      .def("reserve", &Program::reserve, "rows"_a, "logits"_a, "hidden"_a, "sequences"_a,
           "positions"_a)
      .def_prop_ro("threads", &Program::threads);
}

}  // namespace octavo
