// How errors of the engine reach Python, in words that help the person who runs it.
#include <exception>
#include <new>

#include "bind/parts.h"

namespace nb = nanobind;

namespace octavo {

namespace {

void translate_memory_error(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError,
                    "the system gives the native engine no more memory: free some, or ask for less "
                    "of it (max_num_batched_tokens, max_num_seqs, kv_cache_memory_bytes)");
  }
}

}  // namespace

void translate_errors() { nb::register_exception_translator(translate_memory_error); }

}  // namespace octavo
