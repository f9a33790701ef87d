// Rows of F32, F16 or BF16 to panels of F32, F16 or BF16, rounded to nearest even. Rows
// that keep their type keep their bits; in fp16, numbers of 65520 and above become infinite.
#include "pack/pack_float.h"

#include <algorithm>
#include <cstring>

#include "kernels/numbers.h"

namespace octavo {

namespace {

// Inputs taken from each row in turn: the part of the panel that they fill must stay in the L1.
// Even, so that pairs are not split.
constexpr int kPiece = 64;
constexpr size_t kPieceBytes = kPiece * sizeof(float);

size_t element_bytes(Format format) { return format == Format::F32 ? 4 : 2; }

// Transposes words of 32 rows: neighbours in a row end up 32 words apart. A few rows at once, so
// that eight bytes are written together.
template <class Word>
void interleave(const uint8_t* const* rows, int count, uint8_t* to) {
  constexpr int kTogether = sizeof(uint64_t) / sizeof(Word);
  for (int column = 0; column < kPanel; column += kTogether) {
    for (int i = 0; i < count; ++i) {
      uint64_t together = 0;
      for (int k = 0; k < kTogether; ++k) {
        Word word;
        std::memcpy(&word, rows[column + k] + sizeof(Word) * i, sizeof(Word));
        together |= static_cast<uint64_t>(word) << (8 * sizeof(Word) * k);
      }
      std::memcpy(to + sizeof(Word) * (kPanel * i + column), &together, sizeof together);
    }
  }
}

template <class Element, class Convert>
void convert_all(const float* values, int count, uint8_t* out, Convert convert) {
  for (int i = 0; i < count; ++i) {
    const Element element = convert(values[i]);
    std::memcpy(out + sizeof element * i, &element, sizeof element);
  }
}

void write_floats(Format format, const float* values, int count, uint8_t* out) {
  switch (format) {
    case Format::F32: std::memcpy(out, values, sizeof(float) * count); return;
    case Format::F16: return convert_all<uint16_t>(values, count, out, float_to_half);
    default: return convert_all<uint16_t>(values, count, out, float_to_bf16);
  }
}

// A piece of a row in the panel's type: the stored numbers themselves if they have that type, so
// that their bits are kept; else converted in `room`, where half a pair gets a zero.
const uint8_t* piece_of(Format format, Stored type, const uint8_t* row, int first, int count,
                        uint8_t* room) {
  const bool is_half = format == Format::BF16 && count % 2;
  const size_t size = element_bytes(format), bytes = size * static_cast<size_t>(count);
  if (is_half) std::memset(room, 0, kPieceBytes);
  if (own_float_format(type) == format) {
    const uint8_t* stored = row + size * first;
    if (!is_half) return stored;
    std::memcpy(room, stored, bytes);
  } else {
    float values[kPiece];
    read_floats(type, row, first, count, values);
    write_floats(format, values, count, room);
  }
  return room;
}

void pack_piece(Format format, Stored type, const uint8_t* const* rows, int columns, int first,
                int count, uint8_t* to) {
  static constexpr uint8_t kZeros[kPieceBytes] = {};
  alignas(16) uint8_t rooms[kPanel][kPieceBytes];
  const uint8_t* pieces[kPanel];
  for (int column = 0; column < kPanel; ++column) {
    const bool is_stored = column < columns && rows[column];
    pieces[column] = is_stored ? piece_of(format, type, rows[column], first, count, rooms[column])
                               : kZeros;
  }
  if (format == Format::F16) return interleave<uint16_t>(pieces, count, to);
  interleave<uint32_t>(pieces, format == Format::BF16 ? (count + 1) / 2 : count, to);
}

}  // namespace

bool is_float_type(Stored type) {
  return type == Stored::F32 || type == Stored::F16 || type == Stored::BF16;
}

bool is_float_format(Format format) {
  return format == Format::F32 || format == Format::F16 || format == Format::BF16;
}

size_t float_bytes(Stored type) { return type == Stored::F32 ? 4 : 2; }

Format own_float_format(Stored type) {
  if (type == Stored::F32) return Format::F32;
  return type == Stored::F16 ? Format::F16 : Format::BF16;
}

size_t float_panel_bytes(Format format, int inputs) {
  const size_t kept = format == Format::BF16 ? inputs + inputs % 2 : inputs;  // whole pairs
  return kept * kPanel * element_bytes(format);
}

void read_floats(Stored type, const uint8_t* row, int first, int count, float* out) {
  const size_t size = float_bytes(type);
  row += static_cast<size_t>(first) * size;
  if (type == Stored::F32) {
    std::memcpy(out, row, static_cast<size_t>(count) * size);
    return;
  }
  for (int i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, row + static_cast<size_t>(i) * size, size);
    out[i] = type == Stored::F16 ? half_to_float(bits) : bf16_to_float(bits);
  }
}

void pack_float_panels(Format format, Stored type, const uint8_t* const* rows, int outputs,
                       int inputs, int first_panel, int end_panel, uint8_t* data) {
  const size_t bytes = float_panel_bytes(format, inputs);
  const size_t input_bytes = element_bytes(format) * kPanel;
  for (int p = first_panel; p < end_panel; ++p) {
    uint8_t* panel = data + static_cast<size_t>(p) * bytes;
    const int columns = std::min(kPanel, outputs - p * kPanel);
    for (int first = 0; first < inputs; first += kPiece) {
      pack_piece(format, type, rows + static_cast<size_t>(p) * kPanel, columns, first,
                 std::min(kPiece, inputs - first), panel + input_bytes * first);
    }
  }
}

}  // namespace octavo
