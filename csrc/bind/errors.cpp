// How errors of the engine reach Python, in words that help the person who runs it.
#include <exception>
#include <new>

#include "bind/parts.h"
#include "link/frame_link.h"

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

void translate_end(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const FrameLink::Ended& ended) {
    PyErr_SetString(PyExc_ConnectionError, ended.what());
  }
}

}  // namespace

void translate_errors() {
  nb::register_exception_translator(translate_memory_error);
  nb::register_exception_translator(translate_end);
}

}  // namespace octavo
