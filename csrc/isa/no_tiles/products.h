// The products of tiers without tile registers: by vectors, with any number of rows.
#pragma once

#include "kernels/gemm_coded.inl"
#include "kernels/gemm_float.inl"
#include "kernels/gemm_codes.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr Tiles kTiles = Tiles::None;
constexpr auto bf16_product = multiply<StepBF16>;
constexpr auto codes_product = gemm_quantized;
constexpr auto coded_product = gemm_coded;

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
