// Codes that stand for floats: what the codes of each kind mean, and how lines of them become pairs
// of bf16 numbers (kernels/coded_layout.h).
//
// Each tier defines in its own lines.h:
//   decode_line<Coding>  writes the pairs of a line's inputs, kPairBytes for each two
#pragma once

#include <codes.h>
#include <lines.h>

#include "kernels/coded_layout.h"
#include "kernels/simd.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// 2^120 times the number that E4M3 bits mean in the places of a float: the exponents' biases differ
// by so much. Codes of NaN are numbers here too.
constexpr float kE4m3Factor = 0x1p120f;

// One panel. Its layout is the format's.
template <class Coding>
struct CodedPanel {
  // Known where they are compiled, so that addresses take no division.
  static constexpr int kSpan = Coding::kSmallScales ? kSmallScaleSpan : 1;
  static constexpr int kCodeBits = 8 / Coding::kPairs;

  const uint8_t* data;
  CodedLayout layout;

  size_t code_bytes() const {
    return static_cast<size_t>(layout.group) * kPanel * kCodeBits / 8;
  }
  // Where groups whose scales lie together begin, with these scales.
  const uint8_t* span(int group) const {
    return data + layout.first_bytes + group / kSpan * (layout.scale_bytes + kSpan * code_bytes());
  }
  const uint8_t* scales(int group) const { return span(group) + group % kSpan * kPanel; }
  const uint8_t* codes(int group) const {
    return span(group) + layout.scale_bytes + group % kSpan * code_bytes();
  }
  Floats scale(int group, int output) const {
    if constexpr (Coding::kSmallScales) {
      const Integers code = widened(scales(group) + output);
      const Integers sign = (code & 128) << 24;
      const Floats number = as_floats(with_bits(sign, (code & 127) << 20, 127 << 20));
      return number * splat(kE4m3Factor) * load(reinterpret_cast<const float*>(data) + output);
    } else {
      return load(reinterpret_cast<const float*>(scales(group)) + output);
    }
  }

  void decode(int group, uint8_t* pairs) const {
    const uint8_t* line = codes(group);
    const uint8_t* end = line + code_bytes();
    for (; line < end; line += kCodeLine, pairs += Coding::kPairs * kPairBytes) {
      decode_line<Coding>(line, pairs);
    }
  }
};

template <class Coding>
CodedPanel<Coding> coded_panel(const Matrix& matrix, int panel) {
  return {matrix.data + panel * matrix.panel_bytes, coded_layout_of(matrix.format)};
}

// Calls `run` with the coding of a format.
template <class Run>
void with_coding(Format format, Run run) {
  switch (format) {
    case Format::NF4By64: return run(Nf4{});
    case Format::FP4By64: return run(Fp4{});
    case Format::NVFP4By16: return run(E2m1{});
    default: return run(E4m3{});
  }
}

inline void coded_unpack_row(const Matrix& matrix, int output, float* out) {
  with_coding(matrix.format, [&](auto coding) {
    using Coding = decltype(coding);
    const CodedPanel<Coding> panel = coded_panel<Coding>(matrix, output / kPanel);
    const int column = output % kPanel;
    alignas(kAlign) uint8_t pairs[kMostCodedGroup / 2 * kPairBytes];
    for (int group = 0; group * panel.layout.group < matrix.inputs; ++group) {
      panel.decode(group, pairs);
      float scales[kPanel];
      for (int v = 0; v < kPanelVectors; ++v) {
        store(scales + v * kLanes, panel.scale(group, v * kLanes));
      }
      const float scale = scales[column];
      for (int i = 0; i < panel.layout.group; ++i) {
        uint16_t bits;
        __builtin_memcpy(&bits, pairs + i / 2 * kPairBytes + column * 4 + i % 2 * 2, sizeof bits);
        *out++ = bf16_to_float(bits) * scale;
      }
    }
  });
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
