// Vectors of attention and sampling, as wide as the tier's registers: the compiler's own (GCC,
// clang), so that + - * and comparisons need no names. They live in a namespace of their own,
// `attend`, because the types of kernels/simd.h have the same names.
#pragma once

#include <sizes.h>

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace attend {

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 4)));
typedef double Doubles __attribute__((vector_size(kLanes * 4)));
typedef int64_t WordMask __attribute__((vector_size(kLanes * 4)));
constexpr int kWordLanes = kLanes / 2;

template <typename Vector, typename From>
inline Vector load(const From* from) {
  Vector x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
template <typename Vector, typename To>
inline void store(To* to, Vector x) {
  __builtin_memcpy(to, &x, sizeof x);
}

inline Floats splat(float value) { return value - Floats{}; }
inline Ints splat_bits(uint32_t bits) { return static_cast<int32_t>(bits) - Ints{}; }
inline Ints bits_of(Floats x) { return reinterpret_cast<Ints>(x); }
inline Floats floats_of(Ints x) { return reinterpret_cast<Floats>(x); }
inline Floats select(Ints where, Floats yes, Floats no) { return where ? yes : no; }

// The operands of one step of a sum: for each lane two numbers, of two dimensions (keys) or two
// tokens (values).
struct Two {
  Floats even, odd;
};

inline Two widen(Ints pairs) {
  return {floats_of(pairs << 16), floats_of(pairs & static_cast<int32_t>(0xFFFF0000u))};
}

}  // namespace attend
}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
