// What gcc 11 lacks, included before each unit of a tier where that compiler is used: it has
// `__builtin_shufflevector` only as `__builtin_shuffle`, with the places in a vector.
#pragma once

#include <cstdint>
#include <type_traits>

namespace octavo {

template <class Vector, class... Places>
[[gnu::always_inline]] static inline Vector shuffled(Vector one, Vector other, Places... places) {
  using Place = std::conditional_t<sizeof(one[0]) == 2, int16_t, int32_t>;
  static_assert(sizeof(Place) == sizeof(one[0]));
  static_assert(sizeof...(places) * sizeof(Place) == sizeof(one));
  typedef Place All __attribute__((vector_size(sizeof(Vector))));
  return __builtin_shuffle(one, other, All{static_cast<Place>(places)...});
}

}  // namespace octavo

#define __builtin_shufflevector octavo::shuffled
