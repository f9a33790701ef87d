// What no kernel of a tier can outrun: reading memory, and products that never leave registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

enum class Products : uint8_t { Float, Bf16, Int8 };

struct LimitTable {
  const char* name;  // of the tier
  // Reads every whole line of the cache once; what it returns depends on all of them.
  uint64_t (*read_all)(const uint8_t* data, size_t bytes);
  // Rounds of independent products and sums, in the tier's way with such numbers; returns how many
  // operations these are, a multiplication and an addition being two.
  int64_t (*multiply)(Products products, int64_t rounds);
};

const LimitTable* scalar_limits();
const LimitTable* avx2_limits();
const LimitTable* avx512vnni_limits();
const LimitTable* avx512bf16_limits();

}  // namespace octavo
