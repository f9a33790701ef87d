// How a group of 32 inputs of a quantised panel lies in memory: shared by packing and kernels.
//
// A panel is its groups one behind the other. A group is its header and its codes:
//   header  [32] scales (fp16; Mx4: bf16), two such lines where a scale is for 16 inputs,
//           then [32] minima (fp16) where the format has them
//   codes   in rows of 128 bytes: 4 bytes for each of the 32 outputs. U8 has a row for each of the
//           eight steps of 4 inputs; the others have two steps in a row, 2i in the low halves of
//           the bytes and 2i+1 in the high ones. Behind them stand rows with what is above four
//           bits: the fifth bit of step s is bit s of its input's byte (U5); the fifth and sixth of
//           step s are bits 2(s mod 4) and 2(s mod 4)+1 of the byte in the row s / 4 of two (U6).
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

constexpr int kSteps = kGroup / 4;      // of 4 inputs, which one instruction takes together
constexpr int kHeaderLine = kPanel * 2;  // bytes
constexpr int kCodeRow = kPanel * 4;     // bytes

// A prepared row has 64 bytes for each group of 32 inputs, one line of the cache: 32 codes q, and
// behind them what every format's products need: d, d · Σq (fp32), and where their integer sums
// start, which takes the offset off: -8 Σq, -16 Σq, -128 Σq, -32 Σq of either half (int32).
constexpr int kPreparedGroup = 64;
constexpr int kPreparedScale = 32;
constexpr int kPreparedSum = 36;
constexpr int kPreparedStart8 = 40;
constexpr int kPreparedStart16 = 44;
constexpr int kPreparedStart128 = 48;
constexpr int kPreparedStart32 = 52;  // two of them

// IQ4_NL's sixteen values, and twice the values of the float E2M1, so that they are whole.
constexpr int8_t kTableValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMxValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace octavo
