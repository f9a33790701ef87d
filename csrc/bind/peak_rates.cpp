// Binds the measurement of this machine's peak rates, for `octavo bench profile`.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/parts.h"
#include "kernels/table.h"
#include "runtime/arena.h"
#include "runtime/processor.h"
#include "runtime/team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

// Rounds of a register loop that take about a tenth of a millisecond: long compared with a barrier.
constexpr int64_t kRounds = 20'000;
constexpr int kFewestTries = 5;  // even if other programs delay a thread

// The shortest time in which all threads do their part, over all tries within `seconds`.
template <typename Part>
double best_seconds(Team& team, double seconds, Part part) {
  double best = std::numeric_limits<double>::infinity();
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (int tries = 0; tries < kFewestTries || Clock::now() < end; ++tries) {
    double took = 0.0;
    team.run([&](int worker) {
      team.barrier(worker);
      const auto began = Clock::now();
      part(worker);
      team.barrier(worker);
      if (worker == 0) took = std::chrono::duration<double>(Clock::now() - began).count();
    });
    best = std::min(best, took);
  }
  return best;
}

double read_rate(const std::string& tier, Team& team, size_t bytes, double seconds) {
  const KernelTable& kernels = choose_tier(tier);
  const size_t share = bytes / team.size() / kAlign * kAlign;
  if (share == 0) throw std::invalid_argument("there is less than a line for each thread to read");
  const Pages pages(share * team.size(), true);
  const auto mine = [&](int worker) { return pages.data() + share * worker; };
  team.run([&](int worker) { std::memset(mine(worker), 1, share); });
  std::atomic<uint64_t> seen{0};
  const double best = best_seconds(team, seconds, [&](int worker) {
    seen.fetch_or(kernels.read_all(mine(worker), share), std::memory_order_relaxed);
  });
  return share * team.size() / best;
}

double operation_rate(const std::string& tier, Team& team, Products products, double seconds) {
  const KernelTable& kernels = choose_tier(tier);
  std::vector<int64_t> operations(team.size());
  const double best = best_seconds(team, seconds, [&](int worker) {
    operations[worker] = kernels.multiply_registers(products, kRounds);
  });
  return static_cast<double>(operations[0]) * team.size() / best;
}

}  // namespace

void bind_peak_rates(nb::module_& m) {
  nb::enum_<Products>(m, "Products")
      .value("Float", Products::Float).value("Bf16", Products::Bf16).value("Int8", Products::Int8);
  m.def("read_rate", &read_rate, "tier"_a, "team"_a, "bytes"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("operation_rate", &operation_rate, "tier"_a, "team"_a, "products"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace octavo
