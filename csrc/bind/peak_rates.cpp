// Binds the measurement of this machine's peak rates, for `octavo bench profile`.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/parts.h"
#include "kernels/table.h"
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

// Bytes a second of a loop over the matrices, which the threads share as they share products: what
// a step cannot exceed, since the loop finds as much of the same memory in the caches.
double read_rate(const std::string& tier, Team& team, const std::vector<Matrix>& matrices,
                 double seconds) {
  const KernelTable& kernels = choose_tier(tier);
  size_t bytes = 0;
  for (const Matrix& matrix : matrices) bytes += matrix.panel_bytes * num_panels(matrix);
  if (bytes == 0) throw std::invalid_argument("there is no matrix to read");
  std::atomic<uint64_t> seen{0};
  const double best = best_seconds(team, seconds, [&](int worker) {
    uint64_t mine = 0;
    for (const Matrix& matrix : matrices) {
      const size_t panels = num_panels(matrix);
      const size_t first = panels * worker / team.size();
      const size_t end = panels * (worker + 1) / team.size();
      mine |= kernels.read_all(matrix.data + first * matrix.panel_bytes,
                               (end - first) * matrix.panel_bytes);
    }
    seen.fetch_or(mine, std::memory_order_relaxed);
  });
  return bytes / best;
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
  m.def("read_rate", &read_rate, "tier"_a, "team"_a, "matrices"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("operation_rate", &operation_rate, "tier"_a, "team"_a, "products"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace octavo
