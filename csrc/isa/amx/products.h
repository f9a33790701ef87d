// The products of tiers with tile registers: by tiles from a few rows on.
#pragma once

#include <tile_bf16.h>
#include <tile_coded.h>
#include <tile_codes.h>

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// From how many rows on tiles multiply. An instruction takes about as long for one row as for 16,
// so that with fewer rows vectors reach the memory's speed as well. Estimated from the latencies in
// the manual; nothing of it was measured.
constexpr int kFewestBf16Rows = 4;
constexpr int kFewestCodesRows = 8;  // codes must be expanded first

inline void bf16_product(const Matrix& matrix, const uint8_t* prepared, int rows,
                         int first_panel, int end_panel, uint8_t* scratch,
                         const Epilogue& epilogue, int ahead) {
  const auto run = rows < kFewestBf16Rows ? multiply_few_bf16<kFewestBf16Rows - 1> : multiply_bf16;
  run(matrix, prepared, rows, first_panel, end_panel, scratch, epilogue, ahead);
}

inline void codes_product(const Matrix& matrix, const uint8_t* prepared, int rows,
                          int first_panel, int end_panel, uint8_t* scratch,
                          const Epilogue& epilogue, int ahead) {
  const auto run = rows < kFewestCodesRows ? gemm_quantized : multiply_codes;
  run(matrix, prepared, rows, first_panel, end_panel, scratch, epilogue, ahead);
}

constexpr auto coded_product = gemm_coded;

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
