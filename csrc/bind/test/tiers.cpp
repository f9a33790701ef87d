// The tiers of the test module, and the self-test of those that have tile registers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>

#include "bind/test/parts.h"
#include "runtime/processor.h"
#include "runtime/self_test.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

// A tier whose products of several rows are another's, or have one wrong bit where a format is
// spoiled.
KernelTable alone, together;
int spoiled_format;

void planted_gemm(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                  int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  const KernelTable& kernels = rows == 1 ? alone : together;
  kernels.gemm(matrix, prepared, rows, first_panel, end_panel, scratch, epilogue, ahead);
  if (rows == 1 || static_cast<int>(matrix.format) != spoiled_format) return;
  float* last = epilogue.out + (rows - 1) * epilogue.out_stride + matrix.outputs - 1;
  uint32_t bits;
  std::memcpy(&bits, last, sizeof bits);
  bits ^= 1;
  std::memcpy(last, &bits, sizeof bits);
}

std::string wrong_products_of(const std::string& tier, const std::string& several_rows,
                              int spoiled) {
  alone = choose_tier(tier);
  together = choose_tier(several_rows);
  spoiled_format = spoiled;
  KernelTable planted = alone;
  planted.gemm = planted_gemm;
  return wrong_products(planted);
}

}  // namespace

void bind_test_tiers(nb::module_& m) {
  m.def("tiers", [] {
    std::vector<std::string> names;
    for (const KernelTable* tier : runnable_tiers()) names.emplace_back(tier->name);
    return names;
  });
  m.def("wrong_products", &wrong_products_of, "tier"_a, "several_rows"_a, "spoiled"_a = -1);
}

}  // namespace octavo
