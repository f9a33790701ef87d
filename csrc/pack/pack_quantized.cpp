// From stored blocks of codes, or from floats, to panels of codes (kernels/group_layout.h).
//
// What is stored with codes keeps its codes and its scales bit by bit, at the size they have there.
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

// 32 inputs of one output, on their way.
struct Group {
  uint8_t codes[kGroup];
  uint16_t scale;        // fp16, as is the minimum; of the whole block
  uint16_t minimum;
  uint8_t factors[2];    // of the scale: what this group has of its own (Mx4: an exponent)
  uint8_t minimum_factor;
};

uint16_t read_u16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// 16 bytes hold the first 16 inputs in their low halves and the others in their high ones.
void read_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; i++) {
    codes[i] = bytes[i] & 15;
    codes[16 + i] = bytes[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < kGroup; i++) codes[i] |= (bits[i / 8] >> (i % 8) & 1) << 4;
}

// The types whose block is a group: [scale][minimum?][fifth bits?][16 or 32 bytes].
void read_small(Stored type, const uint8_t* row, int index, Group& group) {
  const bool minima = type == Stored::Q4_1 || type == Stored::Q5_1;
  const bool fifth = type == Stored::Q5_0 || type == Stored::Q5_1;
  const uint8_t* block = row + index * kind_of(type)->block_bytes;
  group.scale = read_u16(block);
  if (minima) group.minimum = read_u16(block + 2);
  const uint8_t* bytes = block + (minima ? 4 : 2);
  if (type == Stored::Q8_0) {
    for (int i = 0; i < kGroup; i++) group.codes[i] = bytes[i] ^ 0x80;  // plus 128
    return;
  }
  read_nibbles(bytes + (fifth ? 4 : 0), group.codes);
  if (fifth) add_fifth_bits(bytes, group.codes);
}

// [exponent][16 bytes]. Twice the float's values are whole, so half the scale: 2^(exponent - 128).
void read_mxfp4(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index * kind_of(Stored::MXFP4)->block_bytes;
  group.factors[0] = block[0];
  read_nibbles(block + 1, group.codes);
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
  group.minimum = read_u16(block + 2) ^ kHalfSign;  // they are taken off
}

void read_k(Stored type, const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * kind_of(type)->block_bytes;
  const int part = index % kParts;
  read_k_scales(block, part, group);
  const uint8_t* fifth = block + 16;
  const uint8_t* low = block + (type == Stored::Q5_K ? 48 : 16) + part / 2 * kGroup;
  for (int i = 0; i < kGroup; i++) group.codes[i] = low[i] >> (part % 2 * 4) & 15;
  if (type == Stored::Q5_K) {
    for (int i = 0; i < kGroup; i++) group.codes[i] |= (fifth[i] >> part & 1) << 4;
  }
}

// [128 bytes: low four bits][64: two above][16 signed scales][scale].
void read_q6_k(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * kind_of(Stored::Q6_K)->block_bytes;
  const int part = index % kParts, half = part / 4, quarter = part % 4;
  const uint8_t* low = block + half * 64 + quarter % 2 * kGroup;
  const uint8_t* high = block + 128 + half * kGroup;
  for (int i = 0; i < kGroup; i++) {
    const int two = high[i] >> (2 * quarter) & 3;
    group.codes[i] = (low[i] >> (quarter / 2 * 4) & 15) | two << 4;
  }
  group.scale = read_u16(block + 208);
  std::memcpy(group.factors, block + 192 + part * 2, sizeof group.factors);
}

bool has_eight_bits(Format format) {
  return format == Format::U8 || format == Format::U8By64 || format == Format::U8By128;
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
    std::memcpy(groups[i].codes, codes + i * kGroup, kGroup);
  }
}

void read_group(Stored type, const uint8_t* row, int index, Group& group) {
  switch (type) {
    case Stored::MXFP4: return read_mxfp4(row, index, group);
    case Stored::Q4_K:
    case Stored::Q5_K: return read_k(type, row, index, group);
    case Stored::Q6_K: return read_q6_k(row, index, group);
    default: return read_small(type, row, index, group);
  }
}

// Puts four bytes of codes into row `row`, where the output has them.
void put(uint8_t* codes, int row, int output, uint32_t four) {
  std::memcpy(codes + row * kCodeRow + output * 4, &four, sizeof four);
}

void write_codes(Format format, const Group& group, int output, uint8_t* codes) {
  uint32_t steps[kSteps];
  std::memcpy(steps, group.codes, sizeof steps);
  if (has_eight_bits(format)) {
    for (int step = 0; step < kSteps; step++) put(codes, step, output, steps[step]);
    return;
  }
  constexpr uint32_t kLow = 0x0f0f0f0f;
  constexpr int kPairs = kSteps / 2;
  for (int pair = 0; pair < kPairs; pair++) {
    const uint32_t low = steps[2 * pair] & kLow, high = steps[2 * pair + 1] & kLow;
    put(codes, pair, output, low | high << 4);
  }
  if (format == Format::U5 || format == Format::U5Min || format == Format::U5K) {
    uint32_t fifth = 0;
    for (int step = 0; step < kSteps; step++) fifth |= (steps[step] >> 4 & 0x01010101) << step;
    put(codes, kPairs, output, fifth);
  } else if (format == Format::U6) {
    for (int part = 0; part < 2; part++) {
      uint32_t upper = 0;
      for (int step = 0; step < 4; step++) {
        upper |= (steps[part * 4 + step] >> 4 & 0x03030303) << (2 * step);
      }
      put(codes, kPairs + part, output, upper);
    }
  }
}

void write_half(uint8_t* header, int index, uint16_t half) {
  std::memcpy(header + index * sizeof half, &half, sizeof half);
}

void write_header(Format format, const Group& group, int index, int output, uint8_t* header) {
  if (format == Format::Mx4) {
    header[index * kPanel + output] = group.factors[0];
    return;
  }
  write_half(header, output, group.scale);
  if (kGroupLayouts[static_cast<int>(format)].minima) {
    write_half(header, kPanel + output, group.minimum);
  }
  if (format == Format::U6) {
    uint8_t* factors = header + kHeaderLine + index * 2 * kPanel + output;
    for (int part = 0; part < 2; part++) factors[part * kPanel] = group.factors[part];
  } else if (format == Format::U4K || format == Format::U5K) {
    uint8_t* bits = header + kSixBits + index * kSixBitsGroup;
    bits[output] = static_cast<uint8_t>(group.factors[0] | group.minimum_factor << 6);
    bits[kPanel + output % 16] |= group.minimum_factor >> 2 << (output / 16 * 4);
  }
}

// One output of a block of `count` groups, the first of the row's at `first`.
void pack_block(Format format, Stored type, const uint8_t* row, int first, int count, int output,
                uint8_t* block) {
  const GroupLayout& layout = kGroupLayouts[static_cast<int>(format)];
  Group groups[kParts]{};
  if (is_float_type(type)) {
    make_codes(format, type, row, first, count, groups);
  } else {
    for (int i = 0; i < count; i++) read_group(type, row, first + i, groups[i]);
  }
  for (int i = 0; i < count; i++) {
    write_header(format, groups[i], i, output, block);
    write_codes(format, groups[i], output, block + layout.header_bytes + i * layout.code_bytes);
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
  std::memset(panel, 0, quantized_panel_bytes(format, inputs));  // rows that are not there
  const int groups = inputs / kGroup;
  for (int first = 0; first < groups; first += layout.span) {
    const int of_block = std::min(layout.span, groups - first);
    for (int output = 0; output < count; output++) {
      if (rows[output] == nullptr) continue;
      pack_block(format, type, rows[output], first, of_block, output, panel);
    }
    panel += layout.header_bytes + of_block * layout.code_bytes;
  }
}

}  // namespace octavo
