// The team as tests see it: barriers and failures without a model.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "bind/test/parts.h"
#include "runtime/team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

class TestTeam {
 public:
  explicit TestTeam(int threads) : team_(threads, false) {}
  // A rank of several, over memory that all of them map.
  TestTeam(int threads, int descriptor, size_t bytes, int rank, int ranks)
      : ranks_(std::make_shared<Ranks>(descriptor, bytes, rank, ranks, threads)),
        team_(threads, false, ranks_) {}

  // All workers pass this many barriers; worker `failing` runs out of memory before barrier number
  // `before`. Returns how many barriers were passed, over all workers.
  int pass_barriers(int barriers, int failing, int before) {
    std::atomic<int> passed{0};
    team_.run([&](int worker) {
      for (int barrier = 0; barrier < barriers; ++barrier) {
        if (worker == failing && barrier == before) throw std::bad_alloc();
        team_.barrier(worker);
        ++passed;
      }
    });
    return passed;
  }

  // Counts how often a worker saw a number of another that was not the one written before the last
  // barrier. The numbers are no atomics: a race between them is an error of the barrier.
  int count_stale_reads(int rounds) {
    const int size = team_.size();
    std::vector<int> numbers(size, -1);
    std::atomic<int> stale{0};
    team_.run([&](int worker) {
      for (int round = 0; round < rounds; ++round) {
        numbers[worker] = round;
        team_.barrier(worker);
        for (int other = 0; other < size; ++other)
          if (numbers[other] != round) ++stale;
        team_.barrier(worker);
      }
    });
    return stale;
  }

  // The first rank posts so many times a message of so many bytes, and waits for all others.
  // Returns the seconds of each.
  double post(int rounds, size_t bytes) {
    const auto began = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round) {
      std::memset(ranks_->room(bytes), round, bytes);
      ranks_->post(Ranks::Kind::Message, 0, bytes);
      ranks_->wait();
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
    return taken.count() / rounds;
  }

  // Another rank takes so many messages; returns the sum of their first bytes.
  int take(int rounds) {
    int sum = 0;
    for (int round = 0; round < rounds; ++round) {
      const Ranks::Posted posted = ranks_->next();
      if (posted.bytes > 0) sum += posted.data[0];
      ranks_->finish();
    }
    return sum;
  }

  // Passes so many barriers; returns the seconds of each.
  double time_barriers(int barriers) {
    const auto began = std::chrono::steady_clock::now();
    pass_barriers(barriers, -1, 0);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
    return taken.count() / barriers;
  }

  void end(const std::string& reason) { ranks_->end(reason); }

 private:
  std::shared_ptr<Ranks> ranks_;
  Team team_;
};

}  // namespace

void bind_test_team(nb::module_& m) {
  nb::class_<TestTeam>(m, "TestTeam")
      .def(nb::init<int>(), "threads"_a)
      .def(nb::init<int, int, size_t, int, int>(), "threads"_a, "descriptor"_a, "bytes"_a,
           "rank"_a, "ranks"_a)
      .def("post", &TestTeam::post, "rounds"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("take", &TestTeam::take, "rounds"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("time_barriers", &TestTeam::time_barriers, "barriers"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("end", &TestTeam::end, "reason"_a)
      .def("pass_barriers", &TestTeam::pass_barriers, "barriers"_a, "failing"_a = -1,
           "before"_a = 0, nb::call_guard<nb::gil_scoped_release>())
      .def("count_stale_reads", &TestTeam::count_stale_reads, "rounds"_a,
           nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace octavo
