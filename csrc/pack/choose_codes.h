// Int8, int4, FP8 and NF4 made at load: the scale and the codes for a group of floats.
#pragma once

#include <cstdint>

namespace octavo {

// Both choose codes for `count` values, a multiple of 4, and return the fp16 scale for which they
// were chosen: value = scale · (code - offset). A value that is not finite makes the scale NaN, so
// that it is not hidden.
uint16_t choose_eight_bits(const float* values, int count, uint8_t* codes);  // offset 128
uint16_t choose_four_bits(const float* values, int count, uint8_t* codes);   // offset 8

// Both bring the largest magnitude to the largest code, and return the scale; NaN likewise. Of the
// two codes in a byte of NF4, the first is the upper half.
float choose_e4m3(const float* values, int count, uint8_t* codes);
float choose_nf4(const float* values, int count, uint8_t* codes);

}  // namespace octavo
