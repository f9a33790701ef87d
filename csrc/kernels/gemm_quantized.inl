// Products of int8 activations with panels of codes.
//
// For each group of 32 inputs in order, or half of one that has a scale: the integer sum of codes
// times activations, exact, then sum = fma(float(integer) · d, scale, sum), and with minima
// sum = fma(d · sum of q, minimum, sum).
// Every element is computed in this way, for any number of rows and in all tiers: equal bits.
#pragma once

#include <sizes.h>

#include "kernels/codes.inl"
#include "kernels/epilogue.inl"
#include "kernels/quantize.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Rows that use a panel before the next panel: their activations stay in the second-level cache,
// and their sums are 12 KiB. (Where a group has one scale, decoding its codes once for all of these
// rows was measured and is no gain: decoding keeps other units of the processor busy than products
// do. Where it has two, gemm_expanded.inl does it.)
constexpr int kBlockRows = 96;

// ---- one pass over some groups, for `rows` rows and `vectors` vectors of outputs ----

// Brings a step's share of the group `ahead` bytes further on to the L1: this pass uses it.
template <Format format, int step>
OCTAVO_INLINE void ask(const uint8_t* group, size_t ahead) {
  constexpr int kLines = (group_bytes(format) + kAlign - 1) / kAlign;
#pragma GCC unroll 8
  for (int line = kLines * step / kSteps; line < kLines * (step + 1) / kSteps; line++) {
    __builtin_prefetch(group + ahead + line * kAlign, 0, 3);
  }
}

// With one row, a shift of the sums in each group replaces the shift of every load of codes, and
// two short chains of sums replace a long one.
template <Format format, int rows>
constexpr bool kSplitsSums = kDotsHighCodes && rows == 1 && has_four_bits(format);

// `odd` are the sums of odd steps, sixteen times as large, where sums are split.
template <Format format, int rows, int vectors, int step, int end>
OCTAVO_INLINE void dot_steps(Integers (&sums)[rows][vectors], Integers (&odd)[rows][vectors],
                             const Variant& variant, const uint8_t* codes, const uint8_t* group,
                             size_t ahead, const uint8_t* x, size_t x_stride) {
  if constexpr (step < end) {
    if (ahead) ask<format, step>(group, ahead);
    constexpr bool kHigh = kSplitsSums<format, rows> && step % 2;
    Codes weights[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      const uint8_t* four = codes + v * kLanes * 4;
      weights[v] = kHigh ? decode_high<format, step>(four) : decode<format, step>(four, variant);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Four four = splat_four(x + r * x_stride + step * 4);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) {
        Integers& sum = kHigh ? odd[r][v] : sums[r][v];
        sum = dot<has_small_codes(format)>(sum, weights[v], four);
      }
    }
    dot_steps<format, rows, vectors, step + 1, end>(sums, odd, variant, codes, group, ahead, x,
                                                    x_stride);
  }
}

template <Format format>
OCTAVO_INLINE Integers start(const uint8_t* x, int part) {
  if constexpr (layout_of(format).offset == 0) return no_integers();
  if constexpr (kTakesOffsetOff && !has_small_codes(format)) return no_integers();
  const StartPlace place = start_at<format>(part);
  if (place.shift == 0) return splat_integer(x + place.at);
  if (place.shift > 0) return splat_integer(x + place.at) << place.shift;
  // Exact: what is shifted out are zeros.
  const int32_t moved = static_cast<int32_t>(read_four(x + place.at)) >> -place.shift;
  return splat_integer(reinterpret_cast<const uint8_t*>(&moved));
}

// A block of a panel, and one of its groups.
struct Place {
  const uint8_t* header;
  int group;
};

inline Floats load_halves(const uint8_t* p) {
  return load_half(reinterpret_cast<const uint16_t*>(p));
}

// Where a format with signed factors has those of a part of a group.
template <Format format>
inline const uint8_t* factors_of(Place at, int part) {
  return at.header + kHeaderLine + (at.group * layout_of(format).parts + part) * kPanel;
}

inline const uint8_t* half_bytes_of(Place at, int part) {
  return at.header + kHalfBytes + (at.group * 2 + part) * kPanel;
}

// The scales of outputs `first` and so on. Products of bits and fp16 are exact.
template <Format format>
OCTAVO_INLINE Floats load_scale(const Variant& variant, Place at, int part, int first) {
  if constexpr (format == Format::Mx4) {
    return powers_less_128(widened(at.header + at.group * kPanel + first));
  }
  const Floats scale = load_halves(at.header + first * 2);
  if constexpr (has_six_bit_scales(format)) {
    const uint8_t* bits = at.header + kSixBits + at.group * kSixBitsGroup;
    return scale * to_floats(widened(bits + first) & 63);
  }
  if constexpr (has_signed_factors(format)) {
    const Floats factor = to_floats(widened_signed(factors_of<format>(at, part) + first));
    return has_several_tables(format) ? scale * splat(variant.unit) * factor : scale * factor;
  }
  if constexpr (format == Format::U2K) {
    return scale * to_floats(widened(half_bytes_of(at, part) + first) & 15);
  }
  return scale;
}

template <Format format>
OCTAVO_INLINE Floats load_minimum(Place at, int part, int first) {
  const Floats minimum = load_halves(at.header + kHeaderLine + first * 2);
  if constexpr (format == Format::U2K) {
    return minimum * to_floats(widened(half_bytes_of(at, part) + first) >> 4);
  }
  if constexpr (has_six_bit_scales(format)) {
    const uint8_t* bits = at.header + kSixBits + at.group * kSixBitsGroup;
    const Integers four = widened(bits + kPanel + first % 16);
    const Integers above = first < 16 ? four << 2 : four >> 2;
    return minimum * to_floats(with_bits(widened(bits + first) >> 6, above, 0x3C));
  }
  if constexpr (has_zero_points(format)) {
    const auto offset = static_cast<float>(layout_of(format).offset);
    return load_halves(at.header + first * 2) * (splat(offset) - minimum);
  }
  return minimum;
}

// What minima are multiplied by: the scale of a group's inputs times their sum, or that of a half.
template <Format format>
OCTAVO_INLINE float input_sum(const uint8_t* x, int part) {
  if constexpr (layout_of(format).parts == 1) return read_float(x + kPreparedSum);
  const auto start = static_cast<int32_t>(read_four(x + kPreparedStart32 + part * 4));
  return read_float(x + kPreparedScale) * static_cast<float>(-(start >> 5));
}

// Part `part` of a group: all of it, or 16 inputs where these have their own scale.
template <Format format, int rows, int vectors, int part>
OCTAVO_INLINE void add_part(Floats (&sums)[rows][vectors], const Variant& variant, Place at,
                            int first, const uint8_t* codes, size_t ahead, const uint8_t* x,
                            size_t x_stride) {
  constexpr int kPartSteps = kSteps / layout_of(format).parts;
  Integers dots[rows][vectors], odd[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      dots[r][v] = start<format>(x + r * x_stride, part);
      odd[r][v] = no_integers();
    }
  }
  dot_steps<format, rows, vectors, part * kPartSteps, (part + 1) * kPartSteps>(
      dots, odd, variant, codes, at.header + at.group * group_bytes(format), ahead, x, x_stride);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) {
    const Floats scale = load_scale<format>(variant, at, part, first + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      if constexpr (kSplitsSums<format, rows>) dots[r][v] = add_sixteenth(dots[r][v], odd[r][v]);
      const Floats product =
          to_floats(dots[r][v]) * splat(read_float(x + r * x_stride + kPreparedScale));
      sums[r][v] = fma(product, scale, sums[r][v]);
    }
  }
}

template <Format format, int rows, int vectors>
OCTAVO_INLINE void add_minima(Floats (&sums)[rows][vectors], Place at, int part, int first,
                              const uint8_t* x, size_t x_stride) {
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) {
    const Floats minimum = load_minimum<format>(at, part, first + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Floats sum = splat(input_sum<format>(x + r * x_stride, part));
      sums[r][v] = fma(sum, minimum, sums[r][v]);
    }
  }
}

// A panel's products with some rows: a tile of sums[r · 32 + o].
template <Format format, int rows>
void add_groups(const uint8_t* weights, const Variant& variant, size_t ahead, const uint8_t* x,
                size_t x_stride, int groups, float* tile) {
  constexpr int vectors = vectors_beside(rows);
  constexpr GroupLayout kLayout = layout_of(format);
  const int span = has_several_spans(format) ? variant.span : kLayout.span;
  for (int first = 0; first < kPanel; first += vectors * kLanes) {
    Floats sums[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) sums[r][v] = splat(0.0f);
    }
    const uint8_t* codes = weights + first * 4;
    const uint8_t* row = x;
    for (int begin = 0; begin < groups; begin += span) {
      Place at{codes - first * 4, 0};
      codes += kLayout.header_bytes;
      const int end = groups - begin < span ? groups - begin : span;
      do {
        add_part<format, rows, vectors, 0>(sums, variant, at, first, codes, ahead, row, x_stride);
        if constexpr (kLayout.minima) {
          add_minima<format, rows, vectors>(sums, at, 0, first, row, x_stride);
        }
        if constexpr (kLayout.parts == 2) {
          add_part<format, rows, vectors, 1>(sums, variant, at, first, codes, ahead, row,
                                             x_stride);
          if constexpr (kLayout.minima) {
            add_minima<format, rows, vectors>(sums, at, 1, first, row, x_stride);
          }
        }
        codes += kLayout.code_bytes;
        row += kPreparedGroup;
      } while (++at.group < end);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) store(tile + r * kPanel + first + v * kLanes, sums[r][v]);
    }
  }
}

// ---- any number of rows: split evenly over the fewest passes ----

// `Own` may have a function of the tier's, with equal bits.
template <Format format, int rows = kQuantizedRows, class Own = Codes>
void add_rows(int wanted, const uint8_t* weights, const Variant& variant, size_t ahead,
              const uint8_t* x, size_t x_stride, int groups, float* tile) {
  if constexpr (rows > 0) {
    if (wanted == rows) {
      if constexpr (requires { Own::template add_groups<format, rows>; }) {
        return Own::template add_groups<format, rows>(weights, variant, ahead, x, x_stride, groups,
                                                      tile);
      } else {
        return add_groups<format, rows>(weights, variant, ahead, x, x_stride, groups, tile);
      }
    }
    add_rows<format, rows - 1>(wanted, weights, variant, ahead, x, x_stride, groups, tile);
  }
}

// `ask(first, count)` is called before each run of rows.
template <Format format, class Ask>
void add_all_rows(const Matrix& matrix, int panel, const uint8_t* x, int rows, size_t ahead,
                  float* tile, Ask ask) {
  const uint8_t* weights = matrix.data + panel * matrix.panel_bytes;
  const size_t x_stride = prepared_int8_bytes(matrix.inputs);
  const int passes = (rows + kQuantizedRows - 1) / kQuantizedRows;
  for (int pass = 0; pass < passes; pass++) {
    const int first = part_begin(rows, passes, pass);
    const int count = part_begin(rows, passes, pass + 1) - first;
    ask(first, count);
    add_rows<format>(count, weights, variant_of(matrix.format), pass == 0 ? ahead : 0,
                     x + first * x_stride, x_stride, matrix.inputs / kGroup,
                     tile + first * kPanel);
  }
}

// ---- one row's weights ----

inline float half_at(const uint8_t* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return half_to_float(bits);
}

// Scale (of either 16 inputs) and minimum of one output in a group of a block.
template <Format format>
float scale_of(const Variant& variant, Place at, int part, int output) {
  if (format == Format::Mx4) return power_less_128(at.header[at.group * kPanel + output]);
  const float scale = half_at(at.header + output * 2);
  const uint8_t* six = at.header + kSixBits + at.group * kSixBitsGroup;
  if (has_six_bit_scales(format)) return scale * static_cast<float>(six[output] & 63);
  if (has_signed_factors(format)) {
    const auto factor = static_cast<int8_t>(factors_of<format>(at, part)[output]);
    return scale * variant.unit * static_cast<float>(factor);
  }
  if (format == Format::U2K) {
    return scale * static_cast<float>(half_bytes_of(at, part)[output] & 15);
  }
  return scale;
}

template <Format format>
float minimum_of(Place at, int part, int output) {
  const float minimum = half_at(at.header + kHeaderLine + output * 2);
  if (has_zero_points(format)) {
    const auto offset = static_cast<float>(layout_of(format).offset);
    return half_at(at.header + output * 2) * (offset - minimum);
  }
  if (format == Format::U2K) {
    return minimum * static_cast<float>(half_bytes_of(at, part)[output] >> 4);
  }
  if (!has_six_bit_scales(format)) return minimum;
  const uint8_t* six = at.header + kSixBits + at.group * kSixBitsGroup;
  const int four = six[kPanel + output % 16] >> (output / 16 * 4) & 15;
  return minimum * static_cast<float>(six[output] >> 6 | four << 2);
}

template <Format format>
void unpack_codes(const Matrix& matrix, int output, float* out) {
  constexpr GroupLayout kLayout = layout_of(format);
  const Variant variant = variant_of(matrix.format);
  const int span = variant.span, column = output % kPanel;
  Place at{nullptr, span};
  const uint8_t* codes = matrix.data + output / kPanel * matrix.panel_bytes;
  for (int first = 0; first < matrix.inputs; first += kGroup) {
    if (at.group == span) {
      at = {codes, 0};
      codes += kLayout.header_bytes;
    }
    for (int i = 0; i < kGroup; i++) {
      const int part = i / (kGroup / kLayout.parts);
      const float minimum = kLayout.minima ? minimum_of<format>(at, part, column) : 0.0f;
      const float scale = scale_of<format>(variant, at, part, column);
      const int code = code_at<format>(codes, column, i, variant);
      const float value = static_cast<float>(code - kLayout.offset) * scale;
      out[first + i] = kLayout.minima ? value + minimum : value;
    }
    codes += kLayout.code_bytes;
    at.group++;
  }
}

inline void unpack_quantized_row(const Matrix& matrix, int output, float* out) {
  with_codes(matrix.format, [&](auto of) {
    unpack_codes<decltype(of)::value>(matrix, output, out);
  });
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
