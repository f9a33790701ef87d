// The team as tests see it: barriers and failures without a model.
#include <nanobind/nanobind.h>

#include <atomic>
#include <new>
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

 private:
  Team team_;
};

}  // namespace

void bind_test_team(nb::module_& m) {
  nb::class_<TestTeam>(m, "TestTeam")
      .def(nb::init<int>(), "threads"_a)
      .def("pass_barriers", &TestTeam::pass_barriers, "barriers"_a, "failing"_a = -1,
           "before"_a = 0, nb::call_guard<nb::gil_scoped_release>())
      .def("count_stale_reads", &TestTeam::count_stale_reads, "rounds"_a,
           nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace octavo
