/* Peak rates of the processor: reading memory, and products that never leave the registers.
   benchmarks/native/kernels.py compiles this and measures kernels against it. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

/* Reads every line of memory once. */
__attribute__((target("avx512f"))) int64_t read_all_512(const uint8_t* data, size_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
    _mm_prefetch((const char*)data + i + 4096, _MM_HINT_T0);
    _mm_prefetch((const char*)data + i + 4160, _MM_HINT_T0);
    _mm_prefetch((const char*)data + i + 4224, _MM_HINT_T0);
    _mm_prefetch((const char*)data + i + 4288, _MM_HINT_T0);
    a = _mm512_or_si512(a, _mm512_loadu_si512(data + i));
    b = _mm512_or_si512(b, _mm512_loadu_si512(data + i + 64));
    c = _mm512_or_si512(c, _mm512_loadu_si512(data + i + 128));
    d = _mm512_or_si512(d, _mm512_loadu_si512(data + i + 192));
  }
  a = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
  return _mm512_reduce_or_epi64(a);
}

__attribute__((target("avx2"))) int64_t read_all_256(const uint8_t* data, size_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
    _mm_prefetch((const char*)data + i + 4096, _MM_HINT_T0);
    _mm_prefetch((const char*)data + i + 4160, _MM_HINT_T0);
    a = _mm256_or_si256(a, _mm256_loadu_si256((const __m256i*)(data + i)));
    b = _mm256_or_si256(b, _mm256_loadu_si256((const __m256i*)(data + i + 32)));
    c = _mm256_or_si256(c, _mm256_loadu_si256((const __m256i*)(data + i + 64)));
    d = _mm256_or_si256(d, _mm256_loadu_si256((const __m256i*)(data + i + 96)));
  }
  a = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
  return _mm256_extract_epi64(a, 0) | _mm256_extract_epi64(a, 1) | _mm256_extract_epi64(a, 2) |
         _mm256_extract_epi64(a, 3);
}

/* `loops` times one instruction on each of 24 (12) independent accumulators. Assembly, as a
   compiler would see that nothing is computed. */
#define ONE(op, width, n) op " %%" width "0, %%" width "0, %%" width #n "\n\t"
#define TWELVE_HIGH(op, w) ONE(op, w, 4) ONE(op, w, 5) ONE(op, w, 6) ONE(op, w, 7) ONE(op, w, 8) \
  ONE(op, w, 9) ONE(op, w, 10) ONE(op, w, 11) ONE(op, w, 12) ONE(op, w, 13) ONE(op, w, 14)       \
  ONE(op, w, 15)
#define TWELVE_MORE(op, w) ONE(op, w, 16) ONE(op, w, 17) ONE(op, w, 18) ONE(op, w, 19)           \
  ONE(op, w, 20) ONE(op, w, 21) ONE(op, w, 22) ONE(op, w, 23) ONE(op, w, 24) ONE(op, w, 25)      \
  ONE(op, w, 26) ONE(op, w, 27)
#define LOOP(name, features, body)                                                               \
  __attribute__((target(features))) void name(int64_t loops) {                                   \
    __asm__ volatile("1:\n\t" body "dec %0\n\tjnz 1b\n\t" : "+r"(loops) : : "cc", "xmm0", "xmm4", \
                     "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",  \
                     "xmm14", "xmm15");                                                          \
  }

LOOP(peak_fma_256, "avx2,fma", TWELVE_HIGH("vfmadd231ps", "ymm"))
LOOP(peak_fma_512, "avx512f", TWELVE_HIGH("vfmadd231ps", "zmm") TWELVE_MORE("vfmadd231ps", "zmm"))
LOOP(peak_bf16_512, "avx512bf16",
     TWELVE_HIGH("vdpbf16ps", "zmm") TWELVE_MORE("vdpbf16ps", "zmm"))
LOOP(peak_int8_512, "avx512vnni",
     TWELVE_HIGH("vpdpbusd", "zmm") TWELVE_MORE("vpdpbusd", "zmm"))
