// The order of sums, and rows of bf16 numbers. Their products with weights are in tile_bf16.h.
#pragma once

#include <bf16_vectors.h>

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr const char* kBf16Order = "tiles";

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
