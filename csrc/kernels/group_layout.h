// How a quantised panel lies in memory, by groups of 32 inputs: shared by packing and kernels.
//
// A panel is a sequence of blocks. A block is a header and the codes of its groups; the
// last block of a panel may have fewer groups. A header begins with [32] scales (fp16), except in
// Mx4, and goes on with what its format has:
//   minima  U4Min, U5Min, U4K, U5K: [32] (fp16)
//   U4Zero…  [32] zero points (fp16): a minimum is the scale times the zero point, negated
//   U4K, U5K  for each group 48 bytes: [32] the scale's six bits, above them two of the minimum's,
//             and [16] the minimum's other four, outputs 0 … 15 in the low halves of the bytes. A
//             group's scale is these bits times the header's, and so is its minimum.
//   U6        for each 16 inputs [32] signed bytes: a scale is such a byte times the header's
//   Mx4       for each group [32] bytes: the scale is 2 to their power, less 128
// Codes of a group are rows of 128 bytes: 4 bytes for each of the 32 outputs. U8 has a row for each
// of the eight steps of 4 inputs; the others have two steps in a row, 2i in the low halves of the
// bytes and 2i+1 in the high ones. They are followed by rows with the bits above four: the fifth
// bit of step s is bit s of its input's byte (U5); the fifth and sixth of step s are bits
// 2(s mod 4) and 2(s mod 4)+1 of the byte in the row s / 4 of two (U6).
#pragma once

#include "kernels/table.h"

namespace octavo {

// Headers are whole lines of the cache: codes are loaded by lines.
struct GroupLayout {
  int span;          // groups of a block
  int header_bytes;  // of a block
  int parts;         // of a group: 2 where a scale is for 16 inputs
  bool minima;
  int code_bytes;    // of a group, all 32 outputs
  int offset;        // subtracted from a code; tables hold values to which it was added
};

// By Format; those without codes have no layout.
constexpr GroupLayout kGroupLayouts[kFormats] = {
    {}, {}, {},                      // F32, F16, BF16
    {1, 64, 1, false, 1024, 128},    // U8
    {2, 64, 1, false, 1024, 128},    // U8By64
    {4, 64, 1, false, 1024, 128},    // U8By128
    {1, 64, 1, false, 512, 8},       // U4
    {2, 64, 1, false, 512, 8},       // U4By64
    {4, 64, 1, false, 512, 8},       // U4By128
    {1, 128, 1, true, 512, 0},       // U4Min
    {8, 512, 1, true, 512, 0},       // U4K
    {1, 64, 1, false, 640, 16},      // U5
    {1, 128, 1, true, 640, 0},       // U5Min
    {8, 512, 1, true, 640, 0},       // U5K
    {8, 576, 2, false, 768, 32},     // U6
    {1, 64, 1, false, 512, 128},     // Table4
    {2, 64, 1, false, 512, 16},      // Mx4
    {1, 128, 1, true, 512, 0},       // U4Zero
    {2, 128, 1, true, 512, 0},       // U4ZeroBy64
    {4, 128, 1, true, 512, 0},       // U4ZeroBy128
    {4, 64, 1, false, 1024, 128},    // U8Wide
    {}, {}, {}, {}, {},              // F8By32 … NVFP4By16 (coded_layout.h)
};

constexpr int kSteps = kGroup / 4;      // of 4 inputs, which one instruction takes together
constexpr int kHeaderLine = kPanel * 2;  // bytes of 32 scales
constexpr int kCodeRow = kPanel * 4;     // bytes
// In U4K and U5K, after scales and minima.
constexpr int kSixBits = 2 * kHeaderLine;
constexpr int kSixBitsGroup = kPanel + kPanel / 2;

// A prepared row has 64 bytes, one cache line, for each group of 32 inputs: 32 codes q, and then
// the numbers that the products of the formats need: d, d · Σq (fp32), and the start of their
// integer sums, which subtracts the offset: -8 Σq, -16 Σq, -128 Σq, -32 Σq of either half (int32).
constexpr int kPreparedGroup = 64;
constexpr int kPreparedScale = 32;
constexpr int kPreparedSum = 36;
constexpr int kPreparedStart8 = 40;
constexpr int kPreparedStart16 = 44;
constexpr int kPreparedStart128 = 48;
constexpr int kPreparedStart32 = 52;  // two of them

// A wide prepared group has 128 codes q, of which the last group of a row may use fewer, and a
// cache line with d (fp32) and -128 Σq (int32).
constexpr int kPreparedWide = kWide + 64;
constexpr int kWideScale = kWide;
constexpr int kWideStart = kWide + 4;

// IQ4_NL's sixteen values, and twice the values of the float E2M1, so that they are whole.
constexpr int8_t kTableValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMxValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace octavo
