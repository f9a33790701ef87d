// The extension module: each bind/*.cpp adds its own part.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/parts.h"
#include "runtime/processor.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.def("tiers", [] {
    std::vector<std::string> names;
    for (const octavo::KernelTable* tier : octavo::runnable_tiers()) names.emplace_back(tier->name);
    return names;
  });
  octavo::bind_gemm(m);
  octavo::bind_attention(m);
  octavo::bind_sampling(m);
  octavo::bind_weights(m);
  octavo::bind_program(m);
}
