// Products of int8 activations with panels of codes.
//
// For each group of 32 inputs in order: the integer sum of codes times activations, exact, then
// sum = fma(float(integer) · d, scale, sum), and with minima sum = fma(d · sum of q, minimum, sum).
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
// and their sums are 12 KiB. (Expanding codes to bytes once for all of them was measured and is no
// gain: decoding keeps other units of the processor busy than products do.)
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
                             const uint8_t* codes, const uint8_t* group, size_t ahead,
                             const uint8_t* x, size_t x_stride) {
  if constexpr (step < end) {
    if (ahead) ask<format, step>(group, ahead);
    constexpr bool kHigh = kSplitsSums<format, rows> && step % 2;
    Codes weights[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      const uint8_t* four = codes + v * kLanes * 4;
      weights[v] = kHigh ? decode_high<format, step>(four) : decode<format, step>(four);
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
    dot_steps<format, rows, vectors, step + 1, end>(sums, odd, codes, group, ahead, x, x_stride);
  }
}

template <Format format>
OCTAVO_INLINE Integers start(const uint8_t* x, int part) {
  if constexpr (layout_of(format).offset == 0) return no_integers();
  if constexpr (kTakesOffsetOff && !has_small_codes(format)) return no_integers();
  return splat_integer(x + start_at<format>(part));
}

// A block of a panel, and one of its groups.
struct Place {
  const uint8_t* header;
  int group;
};

inline Floats load_halves(const uint8_t* p) {
  return load_half(reinterpret_cast<const uint16_t*>(p));
}

// The scales of outputs `first` and so on. Products of bits and fp16 are exact.
template <Format format>
OCTAVO_INLINE Floats load_scale(Place at, int part, int first) {
  if constexpr (format == Format::Mx4) {
    return powers_less_128(widened(at.header + at.group * kPanel + first));
  }
  const Floats scale = load_halves(at.header + first * 2);
  if constexpr (has_six_bit_scales(format)) {
    const uint8_t* bits = at.header + kSixBits + at.group * kSixBitsGroup;
    return scale * to_floats(widened(bits + first) & 63);
  }
  if constexpr (format == Format::U6) {
    const uint8_t* factors = at.header + kHeaderLine + (at.group * 2 + part) * kPanel;
    return scale * to_floats(widened_signed(factors + first));
  }
  return scale;
}

template <Format format>
OCTAVO_INLINE Floats load_minimum(Place at, int first) {
  const Floats minimum = load_halves(at.header + kHeaderLine + first * 2);
  if constexpr (has_six_bit_scales(format)) {
    const uint8_t* bits = at.header + kSixBits + at.group * kSixBitsGroup;
    const Integers four = widened(bits + kPanel + first % 16);
    const Integers above = first < 16 ? four << 2 : four >> 2;
    return minimum * to_floats(with_bits(widened(bits + first) >> 6, above, 0x3C));
  }
  if constexpr (has_zero_points(format)) {
    return load_halves(at.header + first * 2) * (splat(0.0f) - minimum);
  }
  return minimum;
}

// Part `part` of a group: all of it, or 16 inputs where these have their own scale.
template <Format format, int rows, int vectors, int part>
OCTAVO_INLINE void add_part(Floats (&sums)[rows][vectors], Place at, int first,
                            const uint8_t* codes, size_t ahead, const uint8_t* x,
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
      dots, odd, codes, at.header + at.group * group_bytes(format), ahead, x, x_stride);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) {
    const Floats scale = load_scale<format>(at, part, first + v * kLanes);
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
OCTAVO_INLINE void add_minima(Floats (&sums)[rows][vectors], Place at, int first,
                              const uint8_t* x, size_t x_stride) {
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) {
    const Floats minimum = load_minimum<format>(at, first + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Floats sum = splat(read_float(x + r * x_stride + kPreparedSum));
      sums[r][v] = fma(sum, minimum, sums[r][v]);
    }
  }
}

// A panel's products with some rows: a tile of sums[r · 32 + o]. Its blocks have `span` groups,
// more than the format's own where int8 and int4 have larger groups.
template <Format format, int rows>
void add_groups(const uint8_t* weights, int span, size_t ahead, const uint8_t* x, size_t x_stride,
                int groups, float* tile) {
  constexpr int vectors = vectors_beside(rows);
  constexpr GroupLayout kLayout = layout_of(format);
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
        add_part<format, rows, vectors, 0>(sums, at, first, codes, ahead, row, x_stride);
        if constexpr (kLayout.parts == 2) {
          add_part<format, rows, vectors, 1>(sums, at, first, codes, ahead, row, x_stride);
        }
        if constexpr (kLayout.minima) {
          add_minima<format, rows, vectors>(sums, at, first, row, x_stride);
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
void add_rows(int wanted, const uint8_t* weights, int span, size_t ahead, const uint8_t* x,
              size_t x_stride, int groups, float* tile) {
  if constexpr (rows > 0) {
    if (wanted == rows) {
      constexpr int kOwn = layout_of(format).span;
      const int blocks_of = has_several_spans(format) ? span : kOwn;
      if constexpr (requires { Own::template add_groups<format, rows>; }) {
        return Own::template add_groups<format, rows>(weights, blocks_of, ahead, x, x_stride,
                                                      groups, tile);
      } else {
        return add_groups<format, rows>(weights, blocks_of, ahead, x, x_stride, groups, tile);
      }
    }
    add_rows<format, rows - 1>(wanted, weights, span, ahead, x, x_stride, groups, tile);
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
    const int first = rows * pass / passes, count = rows * (pass + 1) / passes - first;
    ask(first, count);
    add_rows<format>(count, weights, layout_of(matrix.format).span, pass == 0 ? ahead : 0,
                     x + first * x_stride, x_stride, matrix.inputs / kGroup,
                     tile + first * kPanel);
  }
}

// ---- the whole product ----

inline size_t quantized_scratch() { return kBlockRows * kPanel * sizeof(float); }

template <Format format>
void gemm_codes(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  float* tile = reinterpret_cast<float*>(scratch);
  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (int block = 0; block < blocks; block++) {
    const int first = static_cast<int>(int64_t{rows} * block / blocks);
    const int count = static_cast<int>(int64_t{rows} * (block + 1) / blocks) - first;
    const uint8_t* x = prepared + first * prepared_int8_bytes(matrix.inputs);
    for (int panel = first_panel; panel < end_panel; panel++) {
      add_all_rows<format>(matrix, panel, x, count, ahead, tile, [&](int begin, int some) {
        if (epilogue.expand.ups)
          ask_for_ups(matrix, epilogue.expand, first + begin, some, panel);
      });
      finish_tile(matrix, epilogue, first, count, panel, tile);
    }
  }
}

inline void gemm_quantized(const Matrix& matrix, const uint8_t* prepared, int rows,
                           int first_panel, int end_panel, uint8_t* scratch,
                           const Epilogue& epilogue, int ahead) {
  using Product = void (*)(const Matrix&, const uint8_t*, int, int, int, uint8_t*, const Epilogue&,
                           int);
  constexpr Product kProducts[] = {
      gemm_codes<Format::U8>,  gemm_codes<Format::U8>,     gemm_codes<Format::U8>,
      gemm_codes<Format::U4>,  gemm_codes<Format::U4>,     gemm_codes<Format::U4>,
      gemm_codes<Format::U4Min>, gemm_codes<Format::U4K>,
      gemm_codes<Format::U5>,  gemm_codes<Format::U5Min>,  gemm_codes<Format::U5K>,
      gemm_codes<Format::U6>,  gemm_codes<Format::Table4>, gemm_codes<Format::Mx4>,
      gemm_codes<Format::U4Zero>, gemm_codes<Format::U4Zero>, gemm_codes<Format::U4Zero>};
  const int index = static_cast<int>(matrix.format) - static_cast<int>(Format::U8);
  kProducts[index](matrix, prepared, rows, first_panel, end_panel, scratch, epilogue, ahead);
}

// ---- one row's weights ----

inline float half_at(const uint8_t* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return half_to_float(bits);
}

// Scale (of either 16 inputs) and minimum of one output in a group of a block.
template <Format format>
float scale_of(Place at, int part, int output) {
  if (format == Format::Mx4) return power_less_128(at.header[at.group * kPanel + output]);
  const float scale = half_at(at.header + output * 2);
  const uint8_t* six = at.header + kSixBits + at.group * kSixBitsGroup;
  if (has_six_bit_scales(format)) return scale * static_cast<float>(six[output] & 63);
  const uint8_t* eight = at.header + kHeaderLine + (at.group * 2 + part) * kPanel;
  if (format == Format::U6) return scale * static_cast<float>(static_cast<int8_t>(eight[output]));
  return scale;
}

template <Format format>
float minimum_of(Place at, int output) {
  const float minimum = half_at(at.header + kHeaderLine + output * 2);
  if (has_zero_points(format)) return half_at(at.header + output * 2) * (0.0f - minimum);
  if (!has_six_bit_scales(format)) return minimum;
  const uint8_t* six = at.header + kSixBits + at.group * kSixBitsGroup;
  const int four = six[kPanel + output % 16] >> (output / 16 * 4) & 15;
  return minimum * static_cast<float>(six[output] >> 6 | four << 2);
}

template <Format format>
void unpack_codes(const Matrix& matrix, int output, float* out) {
  constexpr GroupLayout kLayout = layout_of(format);
  const int span = layout_of(matrix.format).span, column = output % kPanel;
  Place at{nullptr, span};
  const uint8_t* codes = matrix.data + output / kPanel * matrix.panel_bytes;
  for (int first = 0; first < matrix.inputs; first += kGroup) {
    if (at.group == span) {
      at = {codes, 0};
      codes += kLayout.header_bytes;
    }
    const float minimum = kLayout.minima ? minimum_of<format>(at, column) : 0.0f;
    for (int i = 0; i < kGroup; i++) {
      const float scale = scale_of<format>(at, i / 16, column);
      const int code = code_at<format>(codes, column, i);
      const float value = static_cast<float>(code - kLayout.offset) * scale;
      out[first + i] = kLayout.minima ? value + minimum : value;
    }
    codes += kLayout.code_bytes;
    at.group++;
  }
}

inline void unpack_quantized_row(const Matrix& matrix, int output, float* out) {
  using Unpack = void (*)(const Matrix&, int, float*);
  constexpr Unpack kUnpacks[] = {
      unpack_codes<Format::U8>,  unpack_codes<Format::U8>,     unpack_codes<Format::U8>,
      unpack_codes<Format::U4>,  unpack_codes<Format::U4>,     unpack_codes<Format::U4>,
      unpack_codes<Format::U4Min>, unpack_codes<Format::U4K>,
      unpack_codes<Format::U5>,  unpack_codes<Format::U5Min>,  unpack_codes<Format::U5K>,
      unpack_codes<Format::U6>,  unpack_codes<Format::Table4>, unpack_codes<Format::Mx4>,
      unpack_codes<Format::U4Zero>, unpack_codes<Format::U4Zero>, unpack_codes<Format::U4Zero>,
      unpack_codes<Format::U8>};
  kUnpacks[static_cast<int>(matrix.format) - static_cast<int>(Format::U8)](matrix, output, out);
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
