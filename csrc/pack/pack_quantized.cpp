// Packs stored blocks of codes, or floats, into panels of codes (kernels/group_layout.h).
//
// Stored codes and scales keep their bits and their size; codes that pick points of codebooks
// become those of their elements (read_points.cpp).
// (pack_groups.cpp handles the stored types whose block is a group, except MXFP4, and integers
// except I8Wide.)
#include "pack/pack_quantized.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/numbers.h"
#include "pack/choose_codes.h"
#include "pack/pack_float.h"
#include "pack/blocks/panel_groups.h"
#include "pack/blocks/read_points.h"

namespace octavo {
namespace {

constexpr int kMostMade = 4;      // groups of a block of those that are made at load

struct Kind {
  Stored type;
  Format format;
  int block;  // inputs
  int block_bytes;
  const char* name;
};

constexpr Kind kKinds[] = {
    {Stored::Q4_0, Format::U4, kGroup, 18, "Q4_0"},
    {Stored::Q4_1, Format::U4Min, kGroup, 20, "Q4_1"},
    {Stored::Q5_0, Format::U5, kGroup, 22, "Q5_0"},
    {Stored::Q5_1, Format::U5Min, kGroup, 24, "Q5_1"},
    {Stored::Q8_0, Format::U8, kGroup, 34, "Q8_0"},
    {Stored::Q4_K, Format::U4K, kSuperBlock, 144, "Q4_K"},
    {Stored::Q5_K, Format::U5K, kSuperBlock, 176, "Q5_K"},
    {Stored::Q6_K, Format::U6, kSuperBlock, 210, "Q6_K"},
    {Stored::IQ4_NL, Format::Table4, kGroup, 18, "IQ4_NL"},
    {Stored::MXFP4, Format::Mx4, kGroup, 17, "MXFP4"},
    {Stored::I4By32, Format::U4, 32, 20, "I4By32"},
    {Stored::I4By64, Format::U4By64, 64, 36, "I4By64"},
    {Stored::I4By128, Format::U4By128, 128, 68, "I4By128"},
    {Stored::I4ZeroBy32, Format::U4Zero, 32, 24, "I4ZeroBy32"},
    {Stored::I4ZeroBy64, Format::U4ZeroBy64, 64, 40, "I4ZeroBy64"},
    {Stored::I4ZeroBy128, Format::U4ZeroBy128, 128, 72, "I4ZeroBy128"},
    {Stored::I4MidBy32, Format::U4Mid, 32, 24, "I4MidBy32"},
    {Stored::I4MidBy64, Format::U4MidBy64, 64, 40, "I4MidBy64"},
    {Stored::I4MidBy128, Format::U4MidBy128, 128, 72, "I4MidBy128"},
    {Stored::I3ZeroBy32, Format::U3Zero, 32, 24, "I3ZeroBy32"},
    {Stored::I3ZeroBy64, Format::U3ZeroBy64, 64, 40, "I3ZeroBy64"},
    {Stored::I3ZeroBy128, Format::U3ZeroBy128, 128, 72, "I3ZeroBy128"},
    {Stored::I2ZeroBy32, Format::U2Zero, 32, 24, "I2ZeroBy32"},
    {Stored::I2ZeroBy64, Format::U2ZeroBy64, 64, 40, "I2ZeroBy64"},
    {Stored::I2ZeroBy128, Format::U2ZeroBy128, 128, 72, "I2ZeroBy128"},
    {Stored::I8ZeroBy32, Format::U8Zero, 32, 40, "I8ZeroBy32"},
    {Stored::I8ZeroBy64, Format::U8ZeroBy64, 64, 72, "I8ZeroBy64"},
    {Stored::I8ZeroBy128, Format::U8ZeroBy128, 128, 136, "I8ZeroBy128"},
    {Stored::I8By32, Format::U8, 32, 36, "I8By32"},
    {Stored::I8By64, Format::U8By64, 64, 68, "I8By64"},
    {Stored::I8By128, Format::U8By128, 128, 132, "I8By128"},
    {Stored::I8Wide, Format::U8Wide, 32, 36, "I8Wide"},
    {Stored::Q2_K, Format::U2K, kSuperBlock, 84, "Q2_K"},
    {Stored::Q3_K, Format::U3K, kSuperBlock, 110, "Q3_K"},
    {Stored::IQ4_XS, Format::Table4K, kSuperBlock, 136, "IQ4_XS"},
    {Stored::TQ1_0, Format::U2By256, kSuperBlock, 54, "TQ1_0"},
    {Stored::TQ2_0, Format::U2By256, kSuperBlock, 66, "TQ2_0"},
    {Stored::Q1_0, Format::U2By128, 128, 18, "Q1_0"},
    {Stored::Q2_0, Format::U2By64, 64, 18, "Q2_0"},
    {Stored::IQ1_S, Format::Table3Iq1, kSuperBlock, 50, "IQ1_S"},
    {Stored::IQ1_M, Format::Table3Iq1, kSuperBlock, 56, "IQ1_M"},
    {Stored::IQ2_XXS, Format::Table3Iq2, kSuperBlock, 66, "IQ2_XXS"},
    {Stored::IQ2_XS, Format::Table3Iq2, kSuperBlock, 74, "IQ2_XS"},
    {Stored::IQ2_S, Format::Table3Iq2, kSuperBlock, 82, "IQ2_S"},
    {Stored::IQ3_XXS, Format::Table4Xxs, kSuperBlock, 98, "IQ3_XXS"},
    {Stored::IQ3_S, Format::Table4S, kSuperBlock, 110, "IQ3_S"},
};

const Kind* kind_of(Stored type) {
  for (const Kind& kind : kKinds) {
    if (kind.type == type) return &kind;
  }
  return nullptr;
}

void refuse_part_blocks(const char* what, int inputs, int block) {
  if (inputs > 0 && inputs % block == 0) return;
  throw std::invalid_argument("a matrix of " + std::string(what) + " has inputs in blocks of " +
                              std::to_string(block) + ", and " + std::to_string(inputs) +
                              " are not a multiple: keep it as BF16 or F32");
}

// [exponent][16 bytes]. Twice the float's values are whole, so half the scale: 2^(exponent - 128).
void read_mxfp4(const uint8_t* row, int index, Group& group) {
  constexpr int kBlockBytes = 17;
  const uint8_t* block = row + index * kBlockBytes;
  group.factors[0] = block[0];
  read_halves(block + 1, group);
}

// Q4_K and Q5_K: [scale][minimum][12 bytes: eight scales and minima of six bits][fifth bits?][128].
void read_k_scales(const uint8_t* block, int part, Group& group) {
  const uint8_t* packed = block + 4;
  if (part < 4) {
    group.factors[0] = packed[part] & 63;
    group.minimum_factor = packed[4 + part] & 63;
  } else {
    group.factors[0] = (packed[4 + part] & 15) | packed[part - 4] >> 6 << 4;
    group.minimum_factor = packed[4 + part] >> 4 | packed[part] >> 6 << 4;
  }
  group.scale = read_u16(block);
  group.minimum = read_u16(block + 2) ^ kHalfSign;  // stored minima are subtracted
}

template <bool kHasFifth>
void read_k(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * (kHasFifth ? 176 : 144);
  const int part = index % kParts;
  read_k_scales(block, part, group);
  const uint8_t* fifth = block + 16;
  const uint8_t* low = block + (kHasFifth ? 48 : 16) + part / 2 * kGroup;
  for (int step = 0; step < kSteps; step++) {
    group.steps[step] = read_word(low + 4 * step) >> (part % 2 * 4) & kLow;
    if (kHasFifth) group.steps[step] |= (read_word(fifth + 4 * step) >> part & kOne) << 4;
  }
}

// [128 bytes: low four bits][64: two above][16 signed scales][scale].
void read_q6_k(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 210;
  const int part = index % kParts, half = part / 4, quarter = part % 4;
  const uint8_t* low = block + half * 64 + quarter % 2 * kGroup;
  const uint8_t* high = block + 128 + half * kGroup;
  for (int step = 0; step < kSteps; step++) {
    const uint32_t two = read_word(high + 4 * step) >> (2 * quarter) & kTwo;
    group.steps[step] = (read_word(low + 4 * step) >> (quarter / 2 * 4) & kLow) | two << 4;
  }
  group.scale = read_u16(block + 208);
  std::memcpy(group.factors, block + 192 + part * 2, sizeof group.factors);
}

// [32 bytes: third bits][64: low two bits][12: sixteen scales of six bits, less 32][scale]. A code
// is less 4.
void read_q3_k(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 110;
  const int part = index % kParts;
  const uint8_t* low = block + 32 + part / 4 * kGroup;
  for (int step = 0; step < kSteps; step++) {
    const uint32_t two = read_word(low + 4 * step) >> (part % 4 * 2) & kTwo;
    const uint32_t third = read_word(block + 4 * step) >> part & kOne;
    group.steps[step] = two | third << 2;
  }
  const uint8_t* scales = block + 96;
  for (int i = 0; i < 2; i++) {
    const int number = part * 2 + i;
    const int four = scales[number % 8] >> (number / 8 * 4) & 15;
    const int above = scales[8 + number % 4] >> (number / 4 * 2) & 3;
    group.factors[i] = static_cast<uint8_t>((four | above << 4) - 32);
  }
  group.scale = read_u16(block + 108);
}

// [scale][16 bits: two upper ones of eight scales][4 bytes: their low four][128]. The scales are
// less 32.
void read_iq4_xs(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 136;
  const int part = index % kParts;
  const int four = block[4 + part / 2] >> (part % 2 * 4) & 15;
  const int above = read_u16(block + 2) >> (part * 2) & 3;
  group.factors[0] = static_cast<uint8_t>((four | above << 4) - 32);
  group.scale = read_u16(block);
  read_halves(block + 8 + part * 16, group);
}

// 128 codes of two bits in 32 bytes: those of group `quarter`.
void read_pairs(const uint8_t* bytes, int quarter, Group& group) {
  for (int step = 0; step < kSteps; step++) {
    group.steps[step] = read_word(bytes + 4 * step) >> (2 * quarter) & kTwo;
  }
}

// [16 bytes: scales in the low halves, minima in the high ones][64][scale][minimum].
void read_q2_k(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 84;
  const int part = index % kParts;
  read_pairs(block + 16 + part / 4 * kGroup, part % 4, group);
  std::memcpy(group.factors, block + part * 2, sizeof group.factors);
  group.scale = read_u16(block + 80);
  group.minimum = read_u16(block + 82) ^ kHalfSign;  // stored minima are subtracted
}

// [64][scale].
void read_tq2_0(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 66;
  const int part = index % kParts;
  read_pairs(block + part / 4 * kGroup, part % 4, group);
  group.scale = read_u16(block + 64);
}

// Digit `place` of base three of a byte, which is a fraction of 256.
uint8_t trit(uint8_t byte, int place) {
  constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
  return static_cast<uint8_t>(static_cast<uint8_t>(byte * kPowers[place]) * 3 >> 8);
}

// [32 bytes of five digits][16 of five][4 of four][scale]: of each run first the first digits.
void read_tq1_0(const uint8_t* row, int index, Group& group) {
  constexpr int kFirst = 32, kMiddle = 16, kLast = 4, kInFirst = 160, kInMiddle = 80;
  const uint8_t* block = row + index / kParts * 54;
  uint8_t codes[kGroup];
  for (int i = 0; i < kGroup; i++) {
    const int element = index % kParts * kGroup + i;
    const int middle = element - kInFirst, last = middle - kInMiddle;
    codes[i] = middle < 0 ? trit(block[element % kFirst], element / kFirst)
               : last < 0 ? trit(block[kFirst + middle % kMiddle], middle / kMiddle)
                          : trit(block[kFirst + kMiddle + last % kLast], last / kLast);
  }
  std::memcpy(group.steps, codes, sizeof codes);
  group.scale = read_u16(block + 52);
}

// [scale][16 bytes of bits]: 1 or -1, which are codes of two bits.
void read_q1_0(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / 4 * 18;
  uint8_t codes[kGroup];
  for (int i = 0; i < kGroup; i++) {
    codes[i] = static_cast<uint8_t>((block[2 + index % 4 * 4 + i / 8] >> (i % 8) & 1) << 1);
  }
  std::memcpy(group.steps, codes, sizeof codes);
  group.scale = read_u16(block);
}

// [scale][16 bytes of four codes each, the first in the lowest bits].
void read_q2_0(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / 2 * 18;
  for (int step = 0; step < kSteps; step++) {
    const uint32_t byte = block[2 + index % 2 * kSteps + step];
    group.steps[step] = (byte | byte << 6 | byte << 12 | byte << 18) & kTwo;
  }
  group.scale = read_u16(block);
}

// [scale, fp32][32 unsigned bytes]; the scale is the same in all of a row.
void read_wide(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index * 36;
  float scale;
  std::memcpy(&scale, block, sizeof scale);
  group.scale = float_to_half(scale);
  std::memcpy(group.steps, block + sizeof scale, sizeof group.steps);
}

// All groups of a block, which share the scale.
void make_codes(Format format, Stored type, const uint8_t* row, int first, int count,
                Group* groups) {
  float values[kMostMade * kGroup];
  uint8_t codes[kMostMade * kGroup];
  read_floats(type, row, first * kGroup, count * kGroup, values);
  const auto choose = is_of_bytes(format) ? choose_eight_bits : choose_four_bits;
  const uint16_t scale = choose(values, count * kGroup, codes);
  for (int i = 0; i < count; i++) {
    groups[i].scale = scale;
    std::memcpy(groups[i].steps, codes + i * kGroup, kGroup);
  }
}

// One output of a block of `count` groups, the first of the row's at `first`.
template <Format format, void (*read)(const uint8_t*, int, Group&)>
void pack_stored(Stored, const uint8_t* row, int first, int count, int output, uint8_t* block) {
  for (int i = 0; i < count; i++) {
    Group group;
    read(row, first + i, group);
    write_group<format>(group, i, output, block);
  }
}

template <Format format>
void pack_made(Stored type, const uint8_t* row, int first, int count, int output, uint8_t* block) {
  Group groups[kMostMade];
  make_codes(format, type, row, first, count, groups);
  for (int i = 0; i < count; i++) write_group<format>(groups[i], i, output, block);
}

// Prefetches the next part of a row: the processor does not predict accesses to so many rows.
void fetch(const uint8_t* from, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  for (size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(from + at);
}

using PackBlock = void (*)(Stored, const uint8_t*, int, int, int, uint8_t*);

PackBlock choose(Format format, Stored type) {
  switch (type) {
    case Stored::I8Wide: return pack_stored<Format::U8Wide, read_wide>;
    case Stored::TQ1_0: return pack_stored<Format::U2By256, read_tq1_0>;
    case Stored::TQ2_0: return pack_stored<Format::U2By256, read_tq2_0>;
    case Stored::IQ1_S: return pack_stored<Format::Table3Iq1, read_iq1_s>;
    case Stored::IQ1_M: return pack_stored<Format::Table3Iq1, read_iq1_m>;
    case Stored::IQ2_XXS: return pack_stored<Format::Table3Iq2, read_iq2_xxs>;
    case Stored::IQ2_XS: return pack_stored<Format::Table3Iq2, read_iq2_xs>;
    case Stored::IQ2_S: return pack_stored<Format::Table3Iq2, read_iq2_s>;
    default: break;
  }
  switch (format) {
    case Format::U2K: return pack_stored<Format::U2K, read_q2_k>;
    case Format::U3K: return pack_stored<Format::U3K, read_q3_k>;
    case Format::U2By64: return pack_stored<Format::U2By64, read_q2_0>;
    case Format::U2By128: return pack_stored<Format::U2By128, read_q1_0>;
    case Format::Table4K: return pack_stored<Format::Table4K, read_iq4_xs>;
    case Format::Table4Xxs: return pack_stored<Format::Table4Xxs, read_iq3_xxs>;
    case Format::Table4S: return pack_stored<Format::Table4S, read_iq3_s>;
    case Format::U4K: return pack_stored<Format::U4K, read_k<false>>;
    case Format::U5K: return pack_stored<Format::U5K, read_k<true>>;
    case Format::U6: return pack_stored<Format::U6, read_q6_k>;
    case Format::Mx4: return pack_stored<Format::Mx4, read_mxfp4>;
    case Format::U8: return pack_made<Format::U8>;
    case Format::U8By64: return pack_made<Format::U8By64>;
    case Format::U8By128: return pack_made<Format::U8By128>;
    case Format::U8Wide: return pack_made<Format::U8Wide>;
    case Format::U4: return pack_made<Format::U4>;
    case Format::U4By64: return pack_made<Format::U4By64>;
    case Format::U4By128: return pack_made<Format::U4By128>;
    default: throw std::invalid_argument("a format that only pack_groups fills");
  }
}

}  // namespace

bool is_quantized_type(Stored type) { return kind_of(type) != nullptr; }

bool is_quantized_format(Format format) {
  return kGroupLayouts[static_cast<int>(format)].span > 0;
}

bool is_made_format(Format format) {
  return is_of_bytes(format) || format == Format::U4 || format == Format::U4By64 ||
         format == Format::U4By128;
}

Format own_quantized_format(Stored type) { return kind_of(type)->format; }

size_t quantized_row_bytes(Stored type, int inputs) {
  const Kind& kind = *kind_of(type);
  refuse_part_blocks(kind.name, inputs, kind.block);
  return static_cast<size_t>(inputs / kind.block) * kind.block_bytes;
}

size_t quantized_panel_bytes(Format format, int inputs) {
  refuse_part_blocks("codes", inputs, kGroup);
  const GroupLayout& layout = kGroupLayouts[static_cast<int>(format)];
  const size_t groups = inputs / kGroup, blocks = (groups + layout.span - 1) / layout.span;
  return blocks * layout.header_bytes + groups * layout.code_bytes;
}

void pack_quantized_panel(Format format, Stored type, const uint8_t* const* rows, int count,
                          int inputs, uint8_t* panel) {
  const GroupLayout& layout = kGroupLayouts[static_cast<int>(format)];
  const PackBlock pack_block = choose(format, type);
  std::memset(panel, 0, quantized_panel_bytes(format, inputs));  // for missing rows
  const int groups = inputs / kGroup;
  const size_t stored_bytes = stored_row_bytes(type, inputs) * layout.span / groups;  // of a block
  for (int first = 0; first < groups; first += layout.span) {
    const int of_block = std::min(layout.span, groups - first);
    for (int output = 0; output < count; output++) {
      if (rows[output] == nullptr) continue;
      fetch(rows[output] + (first / layout.span + 1) * stored_bytes, stored_bytes);
      pack_block(type, rows[output], first, of_block, output, panel);
    }
    panel += layout.header_bytes + of_block * layout.code_bytes;
  }
}

}  // namespace octavo
