// Packing of the formats whose codes stand for floats (kernels/coded_layout.h); pack.cpp calls it.
#pragma once

#include "kernels/coded_layout.h"
#include "pack/pack.h"

namespace octavo {

bool is_coded_type(Stored type);
bool is_made_coded(Format format);  // from floats: FP8 and NF4
Format own_coded_format(Stored type);

// Both throw if the inputs are not whole groups.
size_t coded_row_bytes(Stored type, int inputs);
size_t coded_panel_bytes(Format format, int inputs);

// One panel: rows[0 … count-1] are its outputs' stored rows (nullptr: zeros), the rest zeros.
// Rows of floats become codes here, in the formats that are made.
void pack_coded(Format format, Stored type, const uint8_t* const* rows, int count, int inputs,
                uint8_t* panel);

}  // namespace octavo
