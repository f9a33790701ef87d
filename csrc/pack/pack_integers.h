// Packing of integers of safetensors; pack_groups.cpp calls it.
#pragma once

#include "pack/pack.h"

namespace octavo {

// Fills one panel of `groups` groups of 32 inputs from its outputs' stored rows.
using PackPanel = void (*)(const uint8_t* const* rows, int count, int groups, uint8_t* panel);

// The function for a type; nullptr for other types.
PackPanel choose_integers(Stored type);

}  // namespace octavo
