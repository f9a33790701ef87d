// Reports whether this processor, and the operating system, run the amx tier.
// Unlike the kernels, this file is compiled for any processor.
#include <cpuid.h>

#include <cstdint>

namespace octavo {

bool avx512bf16_runs();  // isa/avx512bf16/runs.cpp
bool amx_runs();

namespace {

// Bits of EDX of CPUID leaf 7: products of bf16, tile registers, products of bytes.
constexpr uint32_t kAmx = 1u << 22 | 1u << 24 | 1u << 25;
// Bits of XCR0: the system keeps the tiles' configuration and their contents for each thread.
constexpr uint32_t kKeepsTiles = 1u << 17 | 1u << 18;

uint32_t kept_states() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

bool amx_runs() {
  uint32_t a, b, c, d;
  // AVX-512 runs, so that there is XGETBV.
  return avx512bf16_runs() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAmx) == kAmx &&
         (kept_states() & kKeepsTiles) == kKeepsTiles;
}

}  // namespace octavo
