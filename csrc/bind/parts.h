// The parts of the extension module: what each bind/*.cpp adds.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_gemm(nanobind::module_& m);       // kernels_gemm.cpp
void bind_attention(nanobind::module_& m);  // kernels_attention.cpp
void bind_sampling(nanobind::module_& m);   // kernels_sample.cpp
void bind_weights(nanobind::module_& m);    // weights.cpp
void bind_limits(nanobind::module_& m);     // limits.cpp
void bind_program(nanobind::module_& m);    // program.cpp

}  // namespace octavo
