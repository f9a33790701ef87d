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

enum class Stored : uint32_t {
#define OCTAVO_EACH_STORED(name, number) name = number,
#include "pack/stored.inc"
#undef OCTAVO_EACH_STORED
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
