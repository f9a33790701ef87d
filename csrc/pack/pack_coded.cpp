// Packs rows of codes that stand for floats. Codes keep their bits, and so do scales, unless the
// coding has a factor that they take off.
//
// A stored group is its scale (fp32) and its codes. Of two in a byte, the first is the upper half.
// A group of NVFP4 has the scale of all inputs (fp32), which multiplies or divides its own (E4M3),
// and its codes, the first in the lower half. GGUF's blocks of NVFP4 have four scales (E4M3 without
// a sign, 0x7F a zero) and four times 16 codes, the first eight in the lower halves.
#include "pack/pack_coded.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/coding_tables.h"
#include "pack/choose_codes.h"
#include "pack/pack_float.h"

namespace octavo {
namespace {

constexpr size_t kStoredScale = sizeof(float);
constexpr uint8_t kNoSign = 0x7f;  // of an E4M3 code; if all of these bits are set, it is a NaN

struct CodedKind {
  Stored type;
  Format format;
  const char* name;
};

constexpr CodedKind kCodedKinds[] = {
    {Stored::F8By32, Format::F8By32, "F8By32"},
    {Stored::F8By128, Format::F8By128, "F8By128"},
    {Stored::NF4By64, Format::NF4By64, "NF4By64"},
    {Stored::FP4By64, Format::FP4By64, "FP4By64"},
    {Stored::NVFP4By16, Format::NVFP4By16, "NVFP4By16"},
    {Stored::NVFP4DividedBy16, Format::NVFP4By16, "NVFP4DividedBy16"},
    {Stored::NVFP4, Format::NVFP4By16, "NVFP4"},
};

const CodedKind* coded_kind_of(Stored type) {
  const auto* end = std::end(kCodedKinds);
  const auto* found =
      std::find_if(kCodedKinds, end, [&](const CodedKind& kind) { return kind.type == type; });
  return found == end ? nullptr : found;
}

void refuse_part_groups(const char* name, int inputs, int group) {
  if (inputs > 0 && inputs % group == 0) return;
  throw std::invalid_argument("a matrix of " + std::string(name) + " has inputs in groups of " +
                              std::to_string(group) + ", and " + std::to_string(inputs) +
                              " are not a multiple: keep it as BF16 or F32");
}

size_t codes_at(CodedLayout layout) { return kStoredScale + (layout.first_bytes ? 1 : 0); }

size_t stored_group_bytes(CodedLayout layout) {
  return codes_at(layout) + static_cast<size_t>(layout.group) * layout.code_bits / 8;
}

bool is_nan(uint8_t e4m3) { return (e4m3 & kNoSign) == kNoSign; }

float read_float(const uint8_t* stored) {
  float value;
  std::memcpy(&value, stored, sizeof value);
  return value;
}

void write_float(uint8_t* to, int output, float value) {
  std::memcpy(to + output * sizeof value, &value, sizeof value);
}

float factor_of(Format format) {
  if (format == Format::NF4By64) return Nf4::kFactor;
  return format == Format::FP4By64 ? Fp4::kFactor : 1.0f;
}

// A code of NaN has no number of its own in the panel: its group gets the scale NaN.
float scale_of(const uint8_t* stored, Format format) {
  const CodedLayout layout = coded_layout_of(format);
  const float scale = read_float(stored);
  if (layout.code_bits == 4) return scale / factor_of(format);
  const uint8_t* codes = stored + kStoredScale;
  return std::any_of(codes, codes + layout.group, is_nan) ? NAN : scale;
}

// Four codes as two bytes of a line, with the first two in the lower halves.
uint16_t of_line(const uint8_t* codes, bool is_upper_first) {
  const int one = codes[0], two = codes[1];
  if (!is_upper_first) {
    return static_cast<uint16_t>((one & 15) | (one >> 4) << 8 | (two & 15) << 4 | (two >> 4) << 12);
  }
  return static_cast<uint16_t>(one >> 4 | (one & 15) << 8 | (two & 0xF0) | (two & 15) << 12);
}

// One output's codes of a group go to their place in each line, two bytes wide.
void pack_codes(const uint8_t* stored, CodedLayout layout, int output, uint8_t* lines) {
  const uint8_t* codes = stored + codes_at(layout);
  const uint8_t* end = stored + stored_group_bytes(layout);
  uint8_t* line = lines + place_in_line(output);
  for (; codes < end; codes += 2, line += kCodeLine) {
    uint16_t two;
    std::memcpy(&two, codes, sizeof two);
    if (layout.code_bits == 4) two = of_line(codes, layout.first_bytes == 0);
    std::memcpy(line, &two, sizeof two);
  }
}

// The scale of all inputs; NaN if a group's own is.
float scale_of_row(Stored type, const uint8_t* row, int groups, size_t stored_bytes) {
  for (int group = 0; group < groups; group++) {
    if (is_nan(row[group * stored_bytes + kStoredScale])) return NAN;
  }
  const float scale = read_float(row);
  return type == Stored::NVFP4DividedBy16 ? 1.0f / scale : scale;
}

constexpr int kBlock = 64;  // inputs of one of GGUF's …
constexpr int kBlockGroups = kBlock / 16;
constexpr size_t kBlockBytes = kBlockGroups + kBlock / 2;

// All groups of a block as those of one stored group each.
void pack_block(const uint8_t* block, CodedLayout layout, int group, int output, uint8_t* spans) {
  for (int i = 0; i < kBlockGroups; i++, group++) {
    uint8_t* span = spans + group / layout.span * span_bytes_of(layout);
    span[group % layout.span * kPanel + output] = block[i] == kNoSign ? 0 : block[i] & kNoSign;
    const uint8_t* pairs = block + kBlockGroups + i * 8;
    uint8_t* line = span + layout.scale_bytes + group % layout.span * code_bytes_of(layout) +
                    place_in_line(output);
    // Four codes of a line: those of four bytes' lower halves, then of their upper ones.
    for (int at = 0; at < 16; at += 4, line += kCodeLine) {
      const int shift = at / 8 * 4;
      const uint8_t* four = pairs + at % 8;
      line[0] = static_cast<uint8_t>((four[0] >> shift & 15) | (four[2] >> shift & 15) << 4);
      line[1] = static_cast<uint8_t>((four[1] >> shift & 15) | (four[3] >> shift & 15) << 4);
    }
  }
}

void pack_blocks(const uint8_t* const* rows, int count, int inputs, uint8_t* panel) {
  const CodedLayout layout = coded_layout_of(Format::NVFP4By16);
  for (int block = 0; block < inputs / kBlock; block++) {
    for (int output = 0; output < count; output++) {
      if (rows[output] == nullptr) continue;
      const uint8_t* stored = rows[output] + block * kBlockBytes;
      __builtin_prefetch(stored + kBlockBytes);  // rows are too many to be predicted
      pack_block(stored, layout, block * kBlockGroups, output, panel + layout.first_bytes);
    }
  }
  for (int output = 0; output < count; output++) {
    write_float(panel, output, rows[output] ? 1.0f : 0.0f);
  }
}

void pack_scale(const uint8_t* stored, Format format, int group, int output, uint8_t* span) {
  const CodedLayout layout = coded_layout_of(format);
  if (layout.first_bytes) {
    span[group % layout.span * kPanel + output] = stored[kStoredScale];
  } else {
    write_float(span, output, scale_of(stored, format));
  }
}

// Panels of formats that are made of floats have no scales before all groups.
void pack_made(Format format, Stored type, const uint8_t* const* rows, int count, int inputs,
               uint8_t* panel) {
  const CodedLayout layout = coded_layout_of(format);
  const auto choose = layout.code_bits == 8 ? choose_e4m3 : choose_nf4;
  std::memset(panel, 0, coded_panel_bytes(format, inputs));  // for missing rows
  float values[kMostCodedGroup];
  uint8_t stored[kStoredScale + kMostCodedGroup];
  for (int first = 0; first < inputs; first += layout.group, panel += span_bytes_of(layout)) {
    for (int output = 0; output < count; output++) {
      if (rows[output] == nullptr) continue;
      read_floats(type, rows[output], first, layout.group, values);
      const float scale = choose(values, layout.group, stored + kStoredScale);
      std::memcpy(stored, &scale, sizeof scale);
      write_float(panel, output, scale_of(stored, format));
      pack_codes(stored, layout, output, panel + layout.scale_bytes);
    }
  }
}

}  // namespace

bool is_coded_type(Stored type) { return coded_kind_of(type) != nullptr; }

bool is_made_coded(Format format) {
  return format == Format::F8By32 || format == Format::F8By128 || format == Format::NF4By64;
}

Format own_coded_format(Stored type) { return coded_kind_of(type)->format; }

size_t coded_row_bytes(Stored type, int inputs) {
  const CodedKind& kind = *coded_kind_of(type);
  const CodedLayout layout = coded_layout_of(kind.format);
  if (type == Stored::NVFP4) {
    refuse_part_groups(kind.name, inputs, kBlock);
    return inputs / kBlock * kBlockBytes;
  }
  refuse_part_groups(kind.name, inputs, layout.group * layout.span);
  return inputs / layout.group * stored_group_bytes(layout);
}

size_t coded_panel_bytes(Format format, int inputs) {
  const CodedLayout layout = coded_layout_of(format);
  const int together = layout.group * layout.span;
  refuse_part_groups("codes", inputs, together);
  return layout.first_bytes + inputs / together * span_bytes_of(layout);
}

void pack_coded(Format format, Stored type, const uint8_t* const* rows, int count, int inputs,
                uint8_t* panel) {
  if (is_float_type(type)) return pack_made(format, type, rows, count, inputs, panel);
  const CodedLayout layout = coded_layout_of(format);
  const size_t stored_bytes = stored_group_bytes(layout);
  const int groups = inputs / layout.group;
  std::memset(panel, 0, coded_panel_bytes(format, inputs));  // for missing rows
  if (type == Stored::NVFP4) return pack_blocks(rows, count, inputs, panel);
  for (int output = 0; layout.first_bytes && output < count; output++) {
    if (rows[output] == nullptr) continue;
    write_float(panel, output, scale_of_row(type, rows[output], groups, stored_bytes));
  }
  for (int group = 0; group < groups; group++) {
    uint8_t* span = panel + layout.first_bytes + group / layout.span * span_bytes_of(layout);
    uint8_t* lines = span + layout.scale_bytes + group % layout.span * code_bytes_of(layout);
    for (int output = 0; output < count; output++) {
      if (rows[output] == nullptr) continue;
      const uint8_t* stored = rows[output] + group * stored_bytes;
      for (size_t at = 0; at < stored_bytes; at += kAlign) {  // rows are too many to be predicted
        __builtin_prefetch(stored + stored_bytes + at);
      }
      pack_scale(stored, format, group, output, span);
      pack_codes(stored, layout, output, lines);
    }
  }
}

}  // namespace octavo
