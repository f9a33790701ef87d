// Packing of the formats with codes; pack.cpp sends them here.
#pragma once

#include "pack/pack.h"

namespace octavo {

size_t quantized_panel_bytes(Format format, int inputs);
size_t quantized_row_bytes(Stored type, int inputs);
bool can_pack_quantized(Stored type, Format format);

// One panel: rows[0 … count-1] are its outputs' stored rows (nullptr: zeros), the rest zeros.
void pack_quantized_panel(Format format, Stored type, const uint8_t* const* rows, int count,
                          int inputs, uint8_t* panel);

}  // namespace octavo
