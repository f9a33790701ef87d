// Packs rows as a checkpoint stores them into panels as the kernels stream them.
//
// Packing rearranges bits, and converts only stored types that have no format of their own (the
// destination is then the nearest one). Rows are passed as pointers, so the caller can permute
// them, interleave gates with ups, or leave some out, at no cost.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

namespace octavo {

// The types of stored rows; the numbers are GGUF's, and for those of safetensors our own.
enum class Stored : uint32_t {
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q3_K = 11, Q4_K = 12,
  Q5_K = 13, Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39,
  I4By32 = 1000, I4By64 = 1001, I4By128 = 1002,
  I4ZeroBy32 = 1003, I4ZeroBy64 = 1004, I4ZeroBy128 = 1005,
  I8By32 = 1006, I8By64 = 1007, I8By128 = 1008, I8Wide = 1009,
  F8By32 = 1010, F8By128 = 1011, NF4By64 = 1012, FP4By64 = 1013,
  NVFP4By16 = 1014, NVFP4DividedBy16 = 1015,
};

size_t stored_row_bytes(Stored type, int inputs);

// The format for a stored type: its own, or one that can hold its codes.
Format own_format(Stored type);
// F32/F16/BF16 go to any float format, to U8 and U4 with groups of any size, to FP8 and to NF4.
bool can_pack(Stored type, Format format);

size_t panel_bytes(Format format, int inputs);

// Packs panels [first_panel, end_panel) of a matrix of `outputs` rows; rows[i] is output i's stored
// row, or nullptr for zeros. Threads may pack different panels of one matrix at once.
void pack_panels(Format format, Stored type, const uint8_t* const* rows, int outputs, int inputs,
                 int first_panel, int end_panel, uint8_t* data);

}  // namespace octavo
