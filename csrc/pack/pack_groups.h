// Packing of the stored types whose block is a group of 32 inputs; pack.cpp calls it.
#pragma once

#include "pack/pack.h"

namespace octavo {

// Returns whether pack_groups handles the type; pack_quantized_panel handles the others.
bool packs_groups(Stored type);

// One panel, every byte of it: rows[0 … count-1] are its outputs' stored rows (nullptr: zeros).
void pack_groups(Stored type, const uint8_t* const* rows, int count, int inputs, uint8_t* panel);

}  // namespace octavo
