// Packing of the formats with codes; pack.cpp calls it.
#pragma once

#include "pack/pack.h"

namespace octavo {

bool is_quantized_type(Stored type);
bool is_quantized_format(Format format);
bool is_made_format(Format format);  // from floats: int8 and int4
Format own_quantized_format(Stored type);

// Both throw if the inputs are not whole groups or blocks.
size_t quantized_row_bytes(Stored type, int inputs);
size_t quantized_panel_bytes(Format format, int inputs);

// One panel: rows[0 … count-1] are its outputs' stored rows (nullptr: zeros), the rest zeros.
void pack_quantized_panel(Format format, Stored type, const uint8_t* const* rows, int count,
                          int inputs, uint8_t* panel);

}  // namespace octavo
