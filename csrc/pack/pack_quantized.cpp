// Packs stored blocks of codes, or floats, into panels of codes (kernels/group_layout.h).
//
// Stored codes and scales keep their bits and their size, except that
// Q3_K and IQ4_XS become larger, and IQ4_XS' two scales are rounded to one.
// (pack_groups.cpp handles the stored types whose block is a group, except MXFP4, and integers
// except I8Wide.)
#include "pack/pack_quantized.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/group_layout.h"
#include "kernels/numbers.h"
#include "pack/choose_codes.h"
#include "pack/pack_float.h"

namespace octavo {
namespace {

constexpr int kSuperBlock = 256;  // inputs of a K type's block
constexpr int kParts = kSuperBlock / kGroup;
constexpr uint16_t kHalfSign = 0x8000;
// Codes are read and written by words of four bytes.
constexpr uint32_t kLow = 0x0f0f0f0f, kTwo = 0x03030303, kOne = 0x01010101;
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
    {Stored::I4ZeroBy32, Format::U4Zero, 32, 21, "I4ZeroBy32"},
    {Stored::I4ZeroBy64, Format::U4ZeroBy64, 64, 37, "I4ZeroBy64"},
    {Stored::I4ZeroBy128, Format::U4ZeroBy128, 128, 69, "I4ZeroBy128"},
    {Stored::I8By32, Format::U8, 32, 36, "I8By32"},
    {Stored::I8By64, Format::U8By64, 64, 68, "I8By64"},
    {Stored::I8By128, Format::U8By128, 128, 132, "I8By128"},
    {Stored::I8Wide, Format::U8Wide, 32, 36, "I8Wide"},
    // These have no format of their own: the nearest one is a little larger.
    {Stored::Q3_K, Format::U6, kSuperBlock, 110, "Q3_K"},
    {Stored::IQ4_XS, Format::Table4, kSuperBlock, 136, "IQ4_XS"},
};

const Kind* kind_of(Stored type) {
  for (const Kind& kind : kKinds) {
    if (kind.type == type) return &kind;
  }
  return nullptr;
}

void refuse_parts(const char* what, int inputs, int block) {
  if (inputs > 0 && inputs % block == 0) return;
  throw std::invalid_argument("a matrix of " + std::string(what) + " has inputs in blocks of " +
                              std::to_string(block) + ", and " + std::to_string(inputs) +
                              " are not a multiple: keep it as BF16 or F32");
}

// 32 inputs of one output, between the stored block and the panel.
struct Group {
  uint32_t steps[kSteps];  // four codes each
  uint16_t scale;        // fp16, as is the minimum; of the whole block
  uint16_t minimum;
  uint8_t factors[2];    // of the scale: those of this group (Mx4: an exponent)
  uint8_t minimum_factor;
};

uint16_t read_u16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

uint32_t read_word(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// 16 bytes of two codes each: the first 16 codes below, the others above.
void read_halves(const uint8_t* bytes, Group& group) {
  constexpr int kHalf = kSteps / 2;
  for (int step = 0; step < kHalf; step++) {
    const uint32_t word = read_word(bytes + 4 * step);
    group.steps[step] = word & kLow;
    group.steps[kHalf + step] = word >> 4 & kLow;
  }
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
// is from -4 to 3, which are 28 to 35 of six bits.
void read_q3_k(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 110;
  const int part = index % kParts;
  const uint8_t* low = block + 32 + part / 4 * kGroup;
  for (int step = 0; step < kSteps; step++) {
    const uint32_t two = read_word(low + 4 * step) >> (part % 4 * 2) & kTwo;
    const uint32_t third = read_word(block + 4 * step) >> part & kOne;
    group.steps[step] = two + third * 4 + kOne * 28;  // no sum of a byte reaches the next
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
// less 32; they and the block's are one fp16 in the panel, rounded.
void read_iq4_xs(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 136;
  const int part = index % kParts;
  const int four = block[4 + part / 2] >> (part % 2 * 4) & 15;
  const int above = read_u16(block + 2) >> (part * 2) & 3;
  const float factor = static_cast<float>((four | above << 4) - 32);
  group.scale = float_to_half(half_to_float(read_u16(block)) * factor);
  read_halves(block + 8 + part * 16, group);
}

// [scale, fp32][32 unsigned bytes]; the scale is the same in all of a row.
void read_wide(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index * 36;
  float scale;
  std::memcpy(&scale, block, sizeof scale);
  group.scale = float_to_half(scale);
  std::memcpy(group.steps, block + sizeof scale, sizeof group.steps);
}

constexpr bool has_eight_bits(Format format) {
  return format == Format::U8 || format == Format::U8By64 || format == Format::U8By128 ||
         format == Format::U8Wide;
}

// All groups of a block, which share the scale.
void make_codes(Format format, Stored type, const uint8_t* row, int first, int count,
                Group* groups) {
  float values[kMostMade * kGroup];
  uint8_t codes[kMostMade * kGroup];
  read_floats(type, row, first * kGroup, count * kGroup, values);
  const auto choose = has_eight_bits(format) ? choose_eight_bits : choose_four_bits;
  const uint16_t scale = choose(values, count * kGroup, codes);
  for (int i = 0; i < count; i++) {
    groups[i].scale = scale;
    std::memcpy(groups[i].steps, codes + i * kGroup, kGroup);
  }
}

// Puts four bytes of codes into row `row`, where the output has them.
void put(uint8_t* codes, int row, int output, uint32_t four) {
  std::memcpy(codes + row * kCodeRow + output * 4, &four, sizeof four);
}

template <Format format>
void write_codes(const Group& group, int output, uint8_t* codes) {
  const uint32_t* steps = group.steps;
  if constexpr (has_eight_bits(format)) {
    for (int step = 0; step < kSteps; step++) put(codes, step, output, steps[step]);
    return;
  }
  constexpr int kPairs = kSteps / 2;
  for (int pair = 0; pair < kPairs; pair++) {
    const uint32_t low = steps[2 * pair] & kLow, high = steps[2 * pair + 1] & kLow;
    put(codes, pair, output, low | high << 4);
  }
  if constexpr (format == Format::U5K) {
    uint32_t fifth = 0;
    for (int step = 0; step < kSteps; step++) fifth |= (steps[step] >> 4 & kOne) << step;
    put(codes, kPairs, output, fifth);
  } else if constexpr (format == Format::U6) {
    for (int part = 0; part < 2; part++) {
      uint32_t upper = 0;
      for (int step = 0; step < 4; step++) {
        upper |= (steps[part * 4 + step] >> 4 & kTwo) << (2 * step);
      }
      put(codes, kPairs + part, output, upper);
    }
  }
}

void write_half(uint8_t* header, int index, uint16_t half) {
  std::memcpy(header + index * sizeof half, &half, sizeof half);
}

template <Format format>
void write_header(const Group& group, int index, int output, uint8_t* header) {
  if constexpr (format == Format::Mx4) {
    header[index * kPanel + output] = group.factors[0];
    return;
  }
  write_half(header, output, group.scale);
  if (kGroupLayouts[static_cast<int>(format)].minima) {
    write_half(header, kPanel + output, group.minimum);
  }
  if constexpr (format == Format::U6) {
    uint8_t* factors = header + kHeaderLine + index * 2 * kPanel + output;
    for (int part = 0; part < 2; part++) factors[part * kPanel] = group.factors[part];
  } else if constexpr (format == Format::U4K || format == Format::U5K) {
    uint8_t* bits = header + kSixBits + index * kSixBitsGroup;
    bits[output] = static_cast<uint8_t>(group.factors[0] | group.minimum_factor << 6);
    bits[kPanel + output % 16] |= group.minimum_factor >> 2 << (output / 16 * 4);
  }
}

template <Format format>
void write_group(const Group& group, int index, int output, uint8_t* block) {
  constexpr GroupLayout kLayout = kGroupLayouts[static_cast<int>(format)];
  write_header<format>(group, index, output, block);
  write_codes<format>(group, output, block + kLayout.header_bytes + index * kLayout.code_bytes);
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
  if (type == Stored::Q3_K) return pack_stored<Format::U6, read_q3_k>;
  if (type == Stored::I8Wide) return pack_stored<Format::U8Wide, read_wide>;
  if (type == Stored::IQ4_XS) return pack_stored<Format::Table4, read_iq4_xs>;
  switch (format) {
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
  return has_eight_bits(format) || format == Format::U4 || format == Format::U4By64 ||
         format == Format::U4By128;
}

Format own_quantized_format(Stored type) { return kind_of(type)->format; }

size_t quantized_row_bytes(Stored type, int inputs) {
  const Kind& kind = *kind_of(type);
  refuse_parts(kind.name, inputs, kind.block);
  return static_cast<size_t>(inputs / kind.block) * kind.block_bytes;
}

size_t quantized_panel_bytes(Format format, int inputs) {
  refuse_parts("codes", inputs, kGroup);
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
