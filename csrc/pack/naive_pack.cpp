// The plainest packing: float rows to fp32 panels [inputs][32].
#include <cstring>

#include "pack/pack.h"

namespace octavo {

size_t stored_row_bytes(Stored type, int inputs) {
  const size_t n = inputs;
  switch (type) {
    case Stored::F32: return n * 4;
    case Stored::F16: case Stored::BF16: return n * 2;
    case Stored::Q4_0: case Stored::IQ4_NL: return n / 32 * 18;
    case Stored::Q4_1: return n / 32 * 20;
    case Stored::Q5_0: return n / 32 * 22;
    case Stored::Q5_1: return n / 32 * 24;
    case Stored::Q8_0: return n / 32 * 34;
    case Stored::MXFP4: return n / 32 * 17;
    case Stored::Q4_K: return n / 256 * 144;
    case Stored::Q5_K: return n / 256 * 176;
    case Stored::Q6_K: return n / 256 * 210;
  }
  return 0;
}

Format own_format(Stored) { return Format::F32; }

bool can_pack(Stored type, Format format) {
  return format == Format::F32 &&
         (type == Stored::F32 || type == Stored::F16 || type == Stored::BF16);
}

size_t panel_bytes(Format, int inputs) { return static_cast<size_t>(inputs) * kPanel * 4; }

static float value_of(Stored type, const uint8_t* row, int input) {
  if (!row) return 0.0f;
  float value;
  if (type == Stored::F32) {
    std::memcpy(&value, row + static_cast<size_t>(input) * 4, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, row + static_cast<size_t>(input) * 2, 2);
  if (type == Stored::F16) {
    _Float16 narrow;
    std::memcpy(&narrow, &half, 2);
    return narrow;
  }
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  std::memcpy(&value, &bits, 4);
  return value;
}

void pack_panels(Format, Stored type, const uint8_t* const* rows, int outputs, int inputs,
                 int first_panel, int end_panel, uint8_t* data) {
  for (int panel = first_panel; panel < end_panel; ++panel) {
    float* to = reinterpret_cast<float*>(data + panel * panel_bytes(Format::F32, inputs));
    for (int column = 0; column < kPanel; ++column) {
      const int output = panel * kPanel + column;
      const uint8_t* row = output < outputs ? rows[output] : nullptr;
      for (int input = 0; input < inputs; ++input)
        to[input * kPanel + column] = value_of(type, row, input);
    }
  }
}

}  // namespace octavo
