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
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11,
  Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20,
  IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23, IQ1_M = 29, BF16 = 30, TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39,
  NVFP4 = 40, Q1_0 = 41, Q2_0 = 42,
  I4By32 = 1000, I4By64 = 1001, I4By128 = 1002,
  I4ZeroBy32 = 1003, I4ZeroBy64 = 1004, I4ZeroBy128 = 1005,
  I8By32 = 1006, I8By64 = 1007, I8By128 = 1008, I8Wide = 1009,
  F8By32 = 1010, F8By128 = 1011, NF4By64 = 1012, FP4By64 = 1013,
  NVFP4By16 = 1014, NVFP4DividedBy16 = 1015,
  I8ZeroBy32 = 1016, I8ZeroBy64 = 1017, I8ZeroBy128 = 1018,
  I4MidBy32 = 1019, I4MidBy64 = 1020, I4MidBy128 = 1021,
  I3ZeroBy32 = 1022, I3ZeroBy64 = 1023, I3ZeroBy128 = 1024,
  I2ZeroBy32 = 1025, I2ZeroBy64 = 1026, I2ZeroBy128 = 1027,
};

size_t stored_row_bytes(Stored type, int inputs);

// The format for a stored type: its own, or one that can hold its codes.
Format own_format(Stored type);
// F32/F16/BF16 go to any float format, to U8 and U4 with groups of any size, to FP8 and to NF4.
bool can_pack(Stored type, Format format);

size_t panel_bytes(Format format, int inputs);
// Whether panels of a format have a number for each output that multiplies all of its weights.
bool has_output_scales(Format format);

// Packs panels [first_panel, end_panel) of a matrix of `outputs` rows; rows[i] is output i's stored
// row, or nullptr for zeros. Threads may pack different panels of one matrix at once.
void pack_panels(Format format, Stored type, const uint8_t* const* rows, int outputs, int inputs,
                 int first_panel, int end_panel, uint8_t* data);

}  // namespace octavo
