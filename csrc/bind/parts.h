// The parts of the extension module: what each bind/*.cpp adds.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_gemm(nanobind::module_& m);  // kernels_gemm.cpp

}  // namespace octavo
