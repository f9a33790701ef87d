// A second extension module for tests and benchmarks: single kernels, and the team without a model.
// The engine never uses it, and no wheel contains it.
#include <nanobind/nanobind.h>

#include "bind/parts.h"
#include "bind/test/parts.h"

NB_MODULE(_native_test, m) {
  octavo::translate_errors();
  octavo::bind_test_gemm(m);
  octavo::bind_test_attention(m);
  octavo::bind_test_sums(m);
  octavo::bind_test_team(m);
  octavo::bind_test_activity(m);
  octavo::bind_test_balance(m);
  octavo::bind_test_tiers(m);
}
