// Packing of rows of floats to float formats; pack.cpp calls it.
#pragma once

#include "pack/pack.h"

namespace octavo {

bool is_float_type(Stored type);
bool is_float_format(Format format);
size_t float_bytes(Stored type);  // of one number
Format own_float_format(Stored type);
size_t float_panel_bytes(Format format, int inputs);
void pack_float_panels(Format format, Stored type, const uint8_t* const* rows, int outputs,
                       int inputs, int first_panel, int end_panel, uint8_t* data);

// A stored row of floats as fp32, from which int8 and int4 are made at load.
void read_floats(Stored type, const uint8_t* row, int first, int count, float* out);

}  // namespace octavo
