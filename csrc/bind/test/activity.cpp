// The activity of a program as tests see it, without a program.
#include "choice/activity.h"

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>

#include "bind/test/parts.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

class TestActivity {
 public:
  void begin_step() { step_.emplace(activity_); }
  void end_step() { step_.reset(); }
  bool is_idle(double quiet_seconds) const {
    return activity_.is_idle(std::chrono::duration_cast<Activity::Clock::duration>(
        std::chrono::duration<double>(quiet_seconds)));
  }

 private:
  Activity activity_;
  std::optional<Activity::Step> step_;
};

}  // namespace

void bind_test_activity(nb::module_& m) {
  nb::class_<TestActivity>(m, "TestActivity")
      .def(nb::init<>())
      .def("begin_step", &TestActivity::begin_step)
      .def("end_step", &TestActivity::end_step)
      .def("is_idle", &TestActivity::is_idle, "quiet_seconds"_a);
}

}  // namespace octavo
