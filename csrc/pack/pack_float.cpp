// Rows of F32, F16 or BF16 to panels of F32, F16 or BF16, rounded to nearest even. What is kept
// in its own format keeps its bits; fp16 gets infinities from numbers of 65520 and above.
#include "pack/pack_float.h"

#include <algorithm>
#include <cstring>

#include "kernels/numbers.h"

namespace octavo {

namespace {

// Inputs taken from each row in turn: the piece of panel they go to must stay in the L1.
constexpr int kPiece = 64;

size_t element_bytes(Format format) { return format == Format::F32 ? 4 : 2; }

// Where input i of column 0 lies in a panel, counted in elements; a column further is `apart` on.
size_t place(Format format, int i) {
  if (format != Format::BF16) return static_cast<size_t>(i) * kPanel;
  return static_cast<size_t>(i / 2) * kPanel * 2 + i % 2;
}

template <class Element, class Convert>
void scatter(Format format, const float* values, int first, int count, int column, uint8_t* panel,
             Convert convert) {
  Element* elements = reinterpret_cast<Element*>(panel);
  const int apart = format == Format::BF16 ? 2 : 1;
  for (int i = 0; i < count; ++i) {
    elements[place(format, first + i) + static_cast<size_t>(column) * apart] = convert(values[i]);
  }
}

void scatter_floats(Format format, const float* values, int first, int count, int column,
                    uint8_t* panel) {
  switch (format) {
    case Format::F32:
      return scatter<float>(format, values, first, count, column, panel, [](float v) { return v; });
    case Format::F16:
      return scatter<uint16_t>(format, values, first, count, column, panel, float_to_half);
    default:
      return scatter<uint16_t>(format, values, first, count, column, panel, float_to_bf16);
  }
}

// Elements as they are: a number that is kept as it was stored is not converted twice.
void scatter_bits(Format format, const uint8_t* row, int first, int count, int column,
                  uint8_t* panel) {
  const size_t size = element_bytes(format);
  const int apart = format == Format::BF16 ? 2 : 1;
  for (int i = 0; i < count; ++i) {
    const size_t to = place(format, first + i) + static_cast<size_t>(column) * apart;
    std::memcpy(panel + to * size, row + static_cast<size_t>(first + i) * size, size);
  }
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
  const bool same = own_float_format(type) == format;
  float values[kPiece];
  for (int p = first_panel; p < end_panel; ++p) {
    uint8_t* panel = data + static_cast<size_t>(p) * bytes;
    std::memset(panel, 0, bytes);
    const int columns = std::min(kPanel, outputs - p * kPanel);
    for (int first = 0; first < inputs; first += kPiece) {
      const int count = std::min(kPiece, inputs - first);
      for (int column = 0; column < columns; ++column) {
        const uint8_t* row = rows[p * kPanel + column];
        if (!row) continue;
        if (same) {
          scatter_bits(format, row, first, count, column, panel);
        } else {
          read_floats(type, row, first, count, values);
          scatter_floats(format, values, first, count, column, panel);
        }
      }
    }
  }
}

}  // namespace octavo
