// The extension module: each bind/*.cpp adds its own part.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <new>

#include "bind/parts.h"
#include "runtime/processor.h"

namespace nb = nanobind;

namespace {

// In the words of whoever can do something about it.
void tell_of_memory(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError,
                    "the system gives the native engine no more memory: free some, or ask for less "
                    "of it (max_num_batched_tokens, max_num_seqs, kv_cache_memory_bytes)");
  }
}

}  // namespace

NB_MODULE(_native, m) {
  nb::register_exception_translator(tell_of_memory);
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
  octavo::bind_limits(m);
}
