// How a quantised panel lies in memory, by groups of 32 inputs: shared by packing and kernels.
//
// A panel is a sequence of blocks. A block is a header and the codes of its groups; the
// last block of a panel may have fewer groups. A header begins with [32] scales (fp16), except in
// Mx4, and goes on with what its format has:
//   minima  U4Min, U5Min, U4K, U5K: [32] (fp16)
//   U4Zero…, U8Zero…, U3Zero…, U2Zero…  [32] zero points (fp16): a minimum is the scale times the
//             offset less the zero point
//   U4Mid…    [32] values of the middle code (fp16), which are minima
//   U4K, U5K  for each group 48 bytes: [32] the scale's six bits, above them two of the minimum's,
//             and [16] the minimum's other four, outputs 0 … 15 in the low halves of the bytes. A
//             group's scale is these bits times the header's, and so is its minimum.
//   U6, U3K, Table3…  for each 16 inputs [32] signed bytes: a scale is such a byte times the
//             header's (of IQ types, times Variant::unit)
//   Table4Xxs, Table4S, Table4K  for each 32 inputs [32] signed bytes, likewise
//   U2K       [32] (fp16) and for each 16 inputs [32] bytes: the low half times the header's first
//             numbers is a scale, the upper half times the second ones a minimum
//   Mx4       for each group [32] bytes: the scale is 2 to their power, less 128
// Codes of a group are rows of 128 bytes: 4 bytes for each of the 32 outputs. U8 has a row for each
// of the eight steps of 4 inputs; the others have two steps in a row, 2i in the low halves of the
// bytes and 2i+1 in the high ones. They are followed by rows with the bits above four: the fifth
// bit of step s is bit s of its input's byte (U5); the fifth and sixth of step s are bits
// 2(s mod 4) and 2(s mod 4)+1 of the byte in the row s / 4 of two (U6). Codes of two and three bits
// have these two rows for their lower bits, and those of three bits one as U5 for the third.
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
    {1, 128, 1, true, 1024, 128},    // U8Zero
    {2, 128, 1, true, 1024, 128},    // U8ZeroBy64
    {4, 128, 1, true, 1024, 128},    // U8ZeroBy128
    {1, 128, 1, true, 512, 8},       // U4Mid
    {2, 128, 1, true, 512, 8},       // U4MidBy64
    {4, 128, 1, true, 512, 8},       // U4MidBy128
    {1, 128, 1, true, 384, 0},       // U3Zero
    {2, 128, 1, true, 384, 0},       // U3ZeroBy64
    {4, 128, 1, true, 384, 0},       // U3ZeroBy128
    {1, 128, 1, true, 256, 0},       // U2Zero
    {2, 128, 1, true, 256, 0},       // U2ZeroBy64
    {4, 128, 1, true, 256, 0},       // U2ZeroBy128
    {2, 64, 1, false, 256, 1},       // U2By64
    {4, 64, 1, false, 256, 1},       // U2By128
    {8, 64, 1, false, 256, 1},       // U2By256
    {8, 640, 2, true, 256, 0},       // U2K
    {8, 576, 2, false, 384, 64},     // U3K, by a table
    {8, 576, 2, false, 384, 64},     // Table3Iq1
    {8, 576, 2, false, 384, 64},     // Table3Iq2
    {8, 320, 1, false, 512, 128},    // Table4Xxs
    {8, 320, 1, false, 512, 128},    // Table4S
    {8, 320, 1, false, 512, 128},    // Table4K
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

// In U2K, after the two scales.
constexpr int kHalfBytes = 2 * kHeaderLine;

constexpr bool has_two_bits(Format format) {
  return kGroupLayouts[static_cast<int>(format)].code_bytes == kPanel * kGroup * 2 / 8;
}

constexpr bool has_three_bits(Format format) {
  return kGroupLayouts[static_cast<int>(format)].code_bytes == kPanel * kGroup * 3 / 8;
}

// A signed byte for each part of a group times one for all of a block.
constexpr bool has_signed_factors(Format format) {
  return format == Format::U6 || format == Format::U3K || format == Format::Table3Iq1 ||
         format == Format::Table3Iq2 || format == Format::Table4Xxs || format == Format::Table4S ||
         format == Format::Table4K;
}

// IQ4_NL's sixteen values, and twice the values of the float E2M1, so that they are whole.
constexpr int8_t kTableValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMxValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// Eight times the values of IQ1, each an eighth above or below -1, 0 or 1; and the values of IQ2
// and IQ3. The upper bit of a code is the side of the eighth, or the sign.
constexpr int8_t kIq1Values[16] = {-7, 1, 9, 0, -9, -1, 7};
constexpr int8_t kIq2Values[16] = {8, 25, 43, 0, -8, -25, -43};
constexpr int8_t kQ3KValues[16] = {-4, -3, -2, -1, 0, 1, 2, 3};
constexpr int8_t kIq3XxsValues[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                      -4, -12, -20, -28, -36, -44, -52, -62};
constexpr int8_t kIq3SValues[16] = {1,  3,  5,  7,  9,  11,  13,  15,
                                    -1, -3, -5, -7, -9, -11, -13, -15};

// Values of codes with the offset added, so that they are unsigned.
struct CodeTable {
  int8_t values[16];
};

constexpr const int8_t* table_values(Format format) {
  switch (format) {
    case Format::Table4:
    case Format::Table4K: return kTableValues;
    case Format::Mx4: return kMxValues;
    case Format::U3K: return kQ3KValues;
    case Format::Table3Iq1: return kIq1Values;
    case Format::Table3Iq2: return kIq2Values;
    case Format::Table4Xxs: return kIq3XxsValues;
    case Format::Table4S: return kIq3SValues;
    default: return nullptr;
  }
}

constexpr bool has_table(Format format) { return table_values(format) != nullptr; }

constexpr CodeTable code_table(Format format) {
  CodeTable table{};
  for (int i = 0; i < 16; i++) {
    const int offset = kGroupLayouts[static_cast<int>(format)].offset;
    table.values[i] = static_cast<int8_t>(table_values(format)[i] + offset);
  }
  return table;
}

template <Format format>
static constexpr CodeTable kCodeTable = code_table(format);

// What formats of one kind differ in, whose kernels are the same.
struct Variant {
  int span;
  const int8_t* table = nullptr;
  float unit = 1.0f;  // by which a scale of two factors is multiplied, as values are whole numbers
};

constexpr Variant variant_of(Format format) {
  const int span = kGroupLayouts[static_cast<int>(format)].span;
  switch (format) {
    case Format::U3K: return {span, kCodeTable<Format::U3K>.values};
    case Format::Table3Iq1: return {span, kCodeTable<Format::Table3Iq1>.values, 0.125f};
    case Format::Table3Iq2: return {span, kCodeTable<Format::Table3Iq2>.values, 0.125f};
    case Format::Table4Xxs: return {span, kCodeTable<Format::Table4Xxs>.values, 0.25f};
    case Format::Table4S: return {span, kCodeTable<Format::Table4S>.values};
    case Format::Table4K: return {span, kCodeTable<Format::Table4K>.values};
    default: return {span};
  }
}

}  // namespace octavo
