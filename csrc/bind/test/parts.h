// The functions with which the files of bind/test/ add their part to the module of the tests.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_test_gemm(nanobind::module_& m);       // gemm.cpp
void bind_test_attention(nanobind::module_& m);  // attention.cpp
void bind_test_team(nanobind::module_& m);       // team.cpp
void bind_test_sums(nanobind::module_& m);       // sums.cpp
void bind_test_activity(nanobind::module_& m);   // activity.cpp
void bind_test_balance(nanobind::module_& m);    // balance.cpp
void bind_test_tiers(nanobind::module_& m);      // tiers.cpp

}  // namespace octavo
