// Products of int8 activations with panels of codes, for any number of rows.
#pragma once

#include "kernels/gemm_expanded.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline size_t quantized_scratch() {
  return kBlockRows * kPanel * sizeof(float) + kMostExpandedBytes;
}

// One panel for the rows of a block.
template <Format format, class Ask>
void multiply_codes_of(const Matrix& matrix, int panel, const uint8_t* x, int rows, int ahead,
                       uint8_t* expanded, float* tile, Ask ask) {
  if constexpr (can_expand<format>()) {
    if (rows >= kFewestExpanded) {
      ask(0, rows);
      return multiply_expanded<format>(matrix, panel, x, rows, expanded, tile);
    }
  }
  add_all_rows<format>(matrix, panel, x, rows, ahead, tile, ask);
}

template <Format format>
void gemm_codes(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  float* tile = reinterpret_cast<float*>(scratch);
  uint8_t* expanded = scratch + kBlockRows * kPanel * sizeof(float);
  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (int block = 0; block < blocks; block++) {
    const int first = part_begin(rows, blocks, block);
    const int count = part_begin(rows, blocks, block + 1) - first;
    const uint8_t* x = prepared + first * prepared_int8_bytes(matrix.inputs);
    for (int panel = first_panel; panel < end_panel; panel++) {
      const auto ask = [&](int begin, int some) {
        if (epilogue.expand.ups)
          ask_for_ups(matrix, epilogue.expand, first + begin, some, panel);
      };
      multiply_codes_of<format>(matrix, panel, x, count, ahead, expanded, tile, ask);
      finish_tile(matrix, epilogue, first, count, panel, tile);
    }
  }
}

inline void gemm_quantized(const Matrix& matrix, const uint8_t* prepared, int rows,
                           int first_panel, int end_panel, uint8_t* scratch,
                           const Epilogue& epilogue, int ahead) {
  with_codes(matrix.format, [&](auto of) {
    gemm_codes<decltype(of)::value>(matrix, prepared, rows, first_panel, end_panel, scratch,
                                    epilogue, ahead);
  });
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
