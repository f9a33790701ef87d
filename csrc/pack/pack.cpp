// Chooses the packing for a stored type and a format, and computes sizes.
#include "pack/pack.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "pack/pack_coded.h"
#include "pack/pack_float.h"
#include "pack/pack_groups.h"
#include "pack/pack_quantized.h"

namespace octavo {

namespace {

[[noreturn]] void refuse(const char* what, unsigned number) {
  throw std::invalid_argument(std::string(what) + " " + std::to_string(number) +
                              " is not one the native engine packs");
}

}  // namespace

size_t stored_row_bytes(Stored type, int inputs) {
  if (is_float_type(type)) return float_bytes(type) * static_cast<size_t>(inputs);
  if (is_quantized_type(type)) return quantized_row_bytes(type, inputs);
  if (is_coded_type(type)) return coded_row_bytes(type, inputs);
  refuse("stored type", static_cast<unsigned>(type));
}

Format own_format(Stored type) {
  if (is_float_type(type)) return own_float_format(type);
  if (is_quantized_type(type)) return own_quantized_format(type);
  if (is_coded_type(type)) return own_coded_format(type);
  refuse("stored type", static_cast<unsigned>(type));
}

bool can_pack(Stored type, Format format) {
  if (is_coded_type(type)) return format == own_format(type);
  if (!is_float_type(type)) return is_quantized_type(type) && format == own_format(type);
  return is_float_format(format) || is_made_format(format) || is_made_coded(format);
}

size_t panel_bytes(Format format, int inputs) {
  if (is_float_format(format)) return float_panel_bytes(format, inputs);
  if (is_quantized_format(format)) return quantized_panel_bytes(format, inputs);
  if (is_coded_format(format)) return coded_panel_bytes(format, inputs);
  refuse("format", static_cast<unsigned>(format));
}

bool has_output_scales(Format format) { return coded_layout_of(format).first_bytes > 0; }

void pack_panels(Format format, Stored type, const uint8_t* const* rows, int outputs, int inputs,
                 int first_panel, int end_panel, uint8_t* data) {
  if (!can_pack(type, format)) {
    throw std::invalid_argument("stored type " + std::to_string(static_cast<unsigned>(type)) +
                                " cannot be packed as format " +
                                std::to_string(static_cast<unsigned>(format)));
  }
  if (is_float_format(format)) {
    return pack_float_panels(format, type, rows, outputs, inputs, first_panel, end_panel, data);
  }
  stored_row_bytes(type, inputs);  // throws unless the inputs are whole blocks
  const size_t bytes = panel_bytes(format, inputs);
  for (int panel = first_panel; panel < end_panel; panel++) {
    const int first = panel * kPanel, count = std::min(kPanel, outputs - first);
    uint8_t* to = data + panel * bytes;
    if (is_coded_format(format)) pack_coded(format, type, rows + first, count, inputs, to);
    else if (packs_groups(type)) pack_groups(type, rows + first, count, inputs, to);
    else pack_quantized_panel(format, type, rows + first, count, inputs, to);
  }
}

}  // namespace octavo
