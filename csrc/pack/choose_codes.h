// Int8 and int4 made at load: the scale and the codes for a group of floats.
#pragma once

#include <cstdint>

namespace octavo {

// Of `count` values, a multiple of 4. Both return the scale as fp16, for which the codes were
// chosen: value = scale · (code - offset). A value that is not finite gives a scale that is not a
// number: it must not hide.
uint16_t choose_eight_bits(const float* values, int count, uint8_t* codes);  // offset 128
uint16_t choose_four_bits(const float* values, int count, uint8_t* codes);   // offset 8

}  // namespace octavo
