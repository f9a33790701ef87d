// How a group of 32 inputs of a quantised panel lies in memory: shared by packing and kernels.
//
// A panel is its groups one behind the other. A group is its header and its codes:
//   header  [32] scales (fp16; Mx4: bf16), two such lines where a scale is for 16 inputs,
//           then [32] minima (fp16) where the format has them
//   codes   in vectors of 64 bytes, 16 outputs with 4 inputs each. The eight steps of 4 inputs come
//           in order, for each step (or what shares its vectors) the first 16 outputs, then the last.
//           Four-bit codes: a vector holds step 2i in the low halves of its bytes and 2i+1 in the
//           high ones. Behind all of them come planes with what is above four bits: the fifth bit
//           of step s is bit s of the plane's bytes (U5), the fifth and sixth of step s are bits
//           2(s mod 4) and 2(s mod 4)+1 of the bytes of plane s / 4 (U6).
#pragma once

#include "kernels/table.h"

namespace octavo {

struct GroupLayout {
  int scales;      // for each output: 1, or 2 (one for 16 inputs)
  bool minima;
  int code_bytes;  // of all 32 outputs
  int offset;      // what the kernels take off a code; tables hold values that it was added to
};

// By Format; those without codes have no layout.
constexpr GroupLayout kGroupLayouts[kFormats] = {
    {}, {}, {},            // F32, F16, BF16
    {1, false, 1024, 128}, // U8
    {1, false, 512, 8},    // U4
    {1, true, 512, 0},     // U4Min
    {1, false, 640, 16},   // U5
    {1, true, 640, 0},     // U5Min
    {2, false, 768, 32},   // U6
    {1, false, 512, 128},  // Table4
    {1, false, 512, 16},   // Mx4
};

constexpr int kLineBytes = 64;  // a vector of codes, or a header line of 32 sixteen-bit numbers
constexpr int kSteps = 8;       // of 4 inputs in a group

// IQ4_NL's sixteen values, and twice the values of the float E2M1, so that they are whole.
constexpr int8_t kTableValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMxValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace octavo
