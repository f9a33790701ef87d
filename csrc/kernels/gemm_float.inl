// Products with F32, F16 and BF16 matrices.
//
// Panels: F32 and F16 [inputs][32]; BF16 [inputs / 2][32][2], pairs of inputs side by side as
// `vdpbf16ps` takes them, an odd last input beside a zero. One accumulator per output runs over
// the inputs in their order, so a row's bits do not depend on the rows beside it. Tiers that have
// no bf16 product widen the weights and use fma; they keep prepared rows as fp32 numbers that were
// rounded to bf16.
#pragma once

#include "kernels/epilogue.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// Rows that one kernel takes: their accumulators, a panel's weights and the inputs must fit the
// registers. 24 accumulators of 32 registers with AVX-512, 12 of 16 with AVX2.
constexpr int kMaxRows = kLanes == 16 ? 12 : kLanes == 8 ? 3 : 1;

// Rows whose sums are kept until a panel is done: their inputs stay in L2 while panels pass.
constexpr int kRowBlock = 96;

// Bytes of a panel that pass before the next rows pass them again: a quarter of a usual L2.
constexpr int kChunkBytes = 256 * 1024;

// From how many rows on a kernel that reads a panel alone asks for weights ahead. With fewer it
// waits for memory anyway, and what the processor asks for by itself is as much as can be had.
constexpr int kAheadRows = 6;

// How far ahead, where no other rows read the same weights. Both measured, on a Zen 4.
constexpr int kAheadBytes = 8192;

#if defined(__AVX512BF16__)
constexpr int kBf16Bytes = 2;  // of an input in a prepared row for BF16
#else
constexpr int kBf16Bytes = 4;
#endif

// ---- what a step of the loop over inputs does, for each format ----

inline float input_at(const uint8_t* x) {
  float value;
  __builtin_memcpy(&value, x, sizeof value);
  return value;
}

template <int Rows>
using Sums = Floats[Rows][kPanelVectors];

// One input of each row times its weights, which `weights(vector)` gives as fp32. Whatever the
// registers can hold is loaded once: the weights with AVX-512, the inputs elsewhere.
template <int Rows, class Weights>
inline void add_input(Weights weights, const uint8_t* const (&x)[Rows], size_t at,
                      Sums<Rows>& sums) {
  if constexpr (kLanes == 16) {
    const Floats w[2] = {weights(0), weights(1)};
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Floats input = splat(input_at(x[r] + at));
      sums[r][0] = fma(w[0], input, sums[r][0]);
      sums[r][1] = fma(w[1], input, sums[r][1]);
    }
  } else {
    Floats input[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) input[r] = splat(input_at(x[r] + at));
#pragma GCC unroll 32
    for (int v = 0; v < kPanelVectors; ++v) {
      const Floats w = weights(v);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) sums[r][v] = fma(w, input[r], sums[r][v]);
    }
  }
}

struct StepF32 {
  static constexpr int kMostRows = kMaxRows;
  static constexpr int kInputs = 1;
  static constexpr int kWeightBytes = kPanel * 4;
  static constexpr int kInputBytes = 4;

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    const float* row = reinterpret_cast<const float*>(panel);
    add_input<Rows>([row](int v) { return load(row + v * kLanes); }, x, at, sums);
  }
};

struct StepF16 {
  static constexpr int kMostRows = kMaxRows;
  static constexpr int kInputs = 1;
  static constexpr int kWeightBytes = kPanel * 2;
  static constexpr int kInputBytes = 4;

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    const uint16_t* row = reinterpret_cast<const uint16_t*>(panel);
    add_input<Rows>([row](int v) { return load_half(row + v * kLanes); }, x, at, sums);
  }
};

#if defined(__AVX512BF16__)

struct StepBF16 {
  static constexpr int kMostRows = kMaxRows;
  static constexpr int kInputs = 2;
  static constexpr int kWeightBytes = kPanel * 4;
  static constexpr int kInputBytes = 4;

  static __m512bh pair(const uint8_t* x) {
    int32_t bits;
    __builtin_memcpy(&bits, x, sizeof bits);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
  }

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    const __m512bh low = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel));
    const __m512bh high = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + 64));
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const __m512bh input = pair(x[r] + at);
      sums[r][0].v = _mm512_dpbf16_ps(sums[r][0].v, low, input);
      sums[r][1].v = _mm512_dpbf16_ps(sums[r][1].v, high, input);
    }
  }
};

#else

// The first (0) or the second (1) of each pair of bf16 numbers, as fp32.
template <int Which>
inline Floats pairs(const uint8_t* p) {
#if defined(__AVX512F__)
  const __m512i both = _mm512_loadu_si512(p);
  return {_mm512_castsi512_ps(Which ? _mm512_and_si512(both, _mm512_set1_epi32(-65536))
                                    : _mm512_slli_epi32(both, 16))};
#elif defined(__AVX2__)
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  // Shifted out rather than masked: all 16 registers are taken, none is left for a mask.
  const __m256i low = Which ? _mm256_srli_epi32(both, 16) : both;
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16))};
#else
  uint16_t bits;
  __builtin_memcpy(&bits, p + Which * 2, sizeof bits);
  return {bf16_to_float(bits)};
#endif
}

struct StepBF16 {
  // Three rows' sums and inputs would take all registers of AVX2 and leave none for widening.
  static constexpr int kMostRows = kLanes == 8 ? 2 : kMaxRows;
  static constexpr int kInputs = 2;
  static constexpr int kWeightBytes = kPanel * 4;
  static constexpr int kInputBytes = 8;

  template <int Rows>
  static void add(const uint8_t* panel, const uint8_t* const (&x)[Rows], size_t at,
                  Sums<Rows>& sums) {
    add_input<Rows>([panel](int v) { return pairs<0>(panel + v * kLanes * 4); }, x, at, sums);
    // Without this the compiler keeps the pairs it has loaded, and has no registers left for it.
    if constexpr (kLanes == 8) __asm__ volatile("" ::: "memory");
    add_input<Rows>([panel](int v) { return pairs<1>(panel + v * kLanes * 4); }, x, at + 4, sums);
  }
};

#endif

// ---- rows by panels ----

// What one call of a kernel works on.
struct Piece {
  const uint8_t* panel;  // the first step's weights
  const uint8_t* x;      // the first row's input at that step
  size_t x_bytes;        // from row to row
  int steps;
  bool first;            // sums begin at zero; otherwise they are taken up again
  float* sums;           // [rows][32]
  const uint8_t* ahead;  // memory to ask for meanwhile, ahead_bytes further with each step
  int ahead_bytes;
};

template <class Step, int Rows>
void multiply_rows(const Piece& piece) {
  Sums<Rows> sums;
  const uint8_t* x[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    x[r] = piece.x + r * piece.x_bytes;
#pragma GCC unroll 32
    for (int v = 0; v < kPanelVectors; ++v) {
      sums[r][v] = piece.first ? splat(0.0f) : load(piece.sums + r * kPanel + v * kLanes);
    }
  }
  const uint8_t* panel = piece.panel;
  const uint8_t* ahead = piece.ahead;
  const size_t end = static_cast<size_t>(piece.steps) * Step::kInputBytes;
  for (size_t at = 0; at < end; at += Step::kInputBytes) {
    if constexpr (Rows * 2 >= Step::kMostRows) {  // the smallest of several even parts
      prefetch(ahead);
      if constexpr (Step::kWeightBytes > 64) prefetch(ahead + 64);
    }
    Step::template add<Rows>(panel, x, at, sums);
    panel += Step::kWeightBytes;
    ahead += piece.ahead_bytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 32
    for (int v = 0; v < kPanelVectors; ++v) {
      store(piece.sums + r * kPanel + v * kLanes, sums[r][v]);
    }
  }
}

template <class Step, int Rows = Step::kMostRows>
void multiply_some_rows(int rows, const Piece& piece) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return multiply_some_rows<Step, Rows - 1>(rows, piece);
  }
  multiply_rows<Step, Rows>(piece);
}

// Row `i` of the `parts` even parts that `rows` are cut into.
inline int part_begin(int rows, int parts, int i) {
  return static_cast<int>(static_cast<int64_t>(rows) * i / parts);
}

// One panel for up to kRowBlock rows, summed into `sums`. What is asked for ahead is this panel
// further on if it is read but once; otherwise the panel behind it, a share in each reading. With
// few rows, read once, it is one line over and over, which costs nothing.
// `ask(first, count)` is called for the rows that come next, once for each.
template <class Step, class Ask>
void multiply_panel(const uint8_t* panel, size_t panel_bytes, const uint8_t* x, size_t x_bytes,
                    int rows, int steps, float* sums, Ask ask) {
  constexpr int kChunk = kChunkBytes / Step::kWeightBytes;
  const int groups = (rows + Step::kMostRows - 1) / Step::kMostRows;
  for (int step = 0; step < steps; step += kChunk) {
    const uint8_t* weights = panel + static_cast<size_t>(step) * Step::kWeightBytes;
    const int count = steps - step < kChunk ? steps - step : kChunk;
    for (int g = 0; g < groups; ++g) {
      const int begin = part_begin(rows, groups, g);
      if (step == 0) ask(begin, part_begin(rows, groups, g + 1) - begin);
      Piece piece;
      piece.panel = weights;
      piece.x = x + begin * x_bytes + static_cast<size_t>(step) * Step::kInputBytes;
      piece.x_bytes = x_bytes;
      piece.steps = count;
      piece.first = step == 0;
      piece.sums = sums + begin * kPanel;
      const bool waits = groups == 1 && rows < kAheadRows;
      piece.ahead_bytes = waits ? 0 : Step::kWeightBytes / groups;
      piece.ahead = weights;
      if (groups > 1) {
        piece.ahead += panel_bytes + static_cast<size_t>(g) * count * piece.ahead_bytes;
      } else if (!waits) {
        piece.ahead += kAheadBytes;
      }
      multiply_some_rows<Step>(part_begin(rows, groups, g + 1) - begin, piece);
    }
  }
}

size_t float_prepared_bytes(Format format, int inputs) {
  const size_t bytes = static_cast<size_t>(inputs + inputs % 2) *
                       (format == Format::BF16 ? kBf16Bytes : 4);
  // An odd number of lines: rows a power of two apart would all fall into one set of the L1.
  return ((bytes + kAlign - 1) / kAlign | 1) * kAlign;
}

template <class Step>
void multiply(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
              int end_panel, uint8_t* scratch, const Epilogue& epilogue) {
  float* sums = reinterpret_cast<float*>(scratch);
  const size_t x_bytes = float_prepared_bytes(matrix.format, matrix.inputs);
  const int steps = (matrix.inputs + Step::kInputs - 1) / Step::kInputs;
  const int blocks = (rows + kRowBlock - 1) / kRowBlock;
  for (int b = 0; b < blocks; ++b) {
    const int begin = part_begin(rows, blocks, b);
    const int count = part_begin(rows, blocks, b + 1) - begin;
    for (int panel = first_panel; panel < end_panel; ++panel) {
      multiply_panel<Step>(
          matrix.data + panel * matrix.panel_bytes, matrix.panel_bytes, prepared + begin * x_bytes,
          x_bytes, count, steps, sums, [&](int first, int some) {
            ask_for_tile(matrix, epilogue, begin + first, some, panel);
          });
      finish_tile(matrix, epilogue, begin, count, panel, sums);
    }
  }
}

// ---- the format's part of the table ----

size_t float_gemm_scratch() { return sizeof(float) * kRowBlock * kPanel; }

void float_gemm(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                int end_panel, uint8_t* scratch, const Epilogue& epilogue) {
  const auto run = matrix.format == Format::F32   ? multiply<StepF32>
                   : matrix.format == Format::F16 ? multiply<StepF16>
                                                  : multiply<StepBF16>;
  run(matrix, prepared, rows, first_panel, end_panel, scratch, epilogue);
}

// An fp32 row rounded to bf16, as pairs or as fp32 (kBf16Bytes). `out` was filled with zeros.
void prepare_bf16_row(const float* x, int inputs, uint8_t* out) {
  int i = 0;
#if defined(__AVX512BF16__)
  for (; i + 16 <= inputs; i += 16) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * 2),
                        reinterpret_cast<__m256i>(rounded));
  }
  for (; i < inputs; ++i) {
    const uint16_t rounded = float_to_bf16(x[i]);
    __builtin_memcpy(out + i * 2, &rounded, sizeof rounded);
  }
#else
  for (; i < inputs; ++i) {
    const float rounded = bf16_to_float(float_to_bf16(x[i]));
    __builtin_memcpy(out + i * 4, &rounded, sizeof rounded);
  }
#endif
}

void float_prepare(Format format, const float* x, size_t x_stride, int rows, int inputs,
                   uint8_t* prepared) {
  const size_t row_bytes = float_prepared_bytes(format, inputs);
  for (int r = 0; r < rows; ++r) {
    uint8_t* out = prepared + r * row_bytes;
    const float* row = x + r * x_stride;
    const size_t used = static_cast<size_t>(inputs) * (format == Format::BF16 ? kBf16Bytes : 4);
    __builtin_memset(out + used, 0, row_bytes - used);
    if (format == Format::BF16) {
      prepare_bf16_row(row, inputs, out);
    } else {
      __builtin_memcpy(out, row, used);
    }
  }
}

void float_unpack_row(const Matrix& matrix, int output, float* out) {
  const uint8_t* panel = matrix.data + output / kPanel * matrix.panel_bytes;
  const int column = output % kPanel;
  for (int i = 0; i < matrix.inputs; ++i) {
    if (matrix.format == Format::F32) {
      out[i] = reinterpret_cast<const float*>(panel)[i * kPanel + column];
    } else if (matrix.format == Format::F16) {
      out[i] = half_to_float(reinterpret_cast<const uint16_t*>(panel)[i * kPanel + column]);
    } else {
      const int pair = i / 2 * kPanel + column;
      out[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(panel)[pair * 2 + i % 2]);
    }
  }
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
