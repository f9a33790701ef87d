// Sums of ranks as tests see them: rows of numbers without a model.
#include "runtime/sums.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/test/parts.h"
#include "nodes/node_sums.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

// A rank's side of sums: those of one machine, or of several nodes.
class TestSums {
 public:
  TestSums(int descriptor, size_t bytes, int rank, int ranks)
      : ranks_(std::make_shared<Ranks>(descriptor, bytes, rank, ranks, 1)),
        number_(rank),
        sums_(std::make_unique<SharedSums>(ranks_)) {}

  // Of a node, with the connections of its first rank: each a descriptor, which this takes over.
  TestSums(int descriptor, size_t bytes, int rank, int ranks, int node, int nodes,
           const std::vector<int>& links, const nb::bytes& sending, const nb::bytes& receiving)
      : ranks_(std::make_shared<Ranks>(descriptor, bytes, rank, ranks, 1)),
        number_(node * ranks + rank) {
    NodeSums::Links made;
    for (const int link : links)
      made.push_back(std::make_shared<PartLink>(
          link, std::string_view(sending.c_str(), sending.size()),
          std::string_view(receiving.c_str(), receiving.size())));
    sums_ = std::make_unique<NodeSums>(ranks_, node, nodes, std::move(made));
  }

  // Adds up so many rows of `width` numbers, one after the other: of row r, this rank has r times
  // its own number, counted from one. Returns the seconds of each, and how many sums were wrong.
  std::pair<double, int> add_up(int rounds, int width) {
    const int ranks = sums_->count();
    std::vector<float> row(width), sum(width);
    int wrong = 0;
    const auto began = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round) {
      std::fill(row.begin(), row.end(), static_cast<float>((number_ + 1) * round));
      std::copy(row.begin(), row.end(), sums_->own(0, 0));
      sums_->meet(0, width, width);
      std::copy_n(sums_->of(0, 0, 0), width, sum.data());
      for (int rank = 1; rank < ranks; ++rank)
        for (int at = 0; at < width; ++at) sum[at] += sums_->of(rank, 0, 0)[at];
      const float expected = static_cast<float>(round * ranks * (ranks + 1) / 2);
      wrong += sum.front() != expected || sum[width / 2] != expected || sum.back() != expected;
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
    return {taken.count() / rounds, wrong};
  }

  void end(const std::string& reason) { ranks_->end(reason); }

 private:
  std::shared_ptr<Ranks> ranks_;
  const int number_;  // of this rank among all
  std::unique_ptr<Sums> sums_;
};

}  // namespace

void bind_test_sums(nb::module_& m) {
  nb::class_<TestSums>(m, "TestSums")
      .def(nb::init<int, size_t, int, int>(), "descriptor"_a, "bytes"_a, "rank"_a, "ranks"_a)
      .def(nb::init<int, size_t, int, int, int, int, const std::vector<int>&, const nb::bytes&,
                    const nb::bytes&>(),
           "descriptor"_a, "bytes"_a, "rank"_a, "ranks"_a, "node"_a, "nodes"_a, "links"_a,
           "sending"_a, "receiving"_a)
      .def("add_up", &TestSums::add_up, "rounds"_a, "width"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("end", &TestSums::end, "reason"_a);
}

}  // namespace octavo
