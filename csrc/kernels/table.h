// The kernels that a processor has for the runtime, and the layout of all memory that they use.
//
// One source, several instruction sets: the files of kernels/units, with the .inl files, are
// compiled for each tier of isa/ with its own flags inside its own namespace, and export one
// KernelTable. The headers in angle brackets are those of the tier, found by the include path.
// Nothing else of a kernel file is visible to the rest of the program; so the linker cannot pick a
// function compiled for a newer processor where an older one runs.
//
// Exactness: a row's bits depend only on that row, the weights and its own sequence, not on the
// other rows of the step, the number of threads, or the path that computes it. Each output element
// is summed over its inputs in one fixed order, by one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

constexpr int kPanel = 32;      // outputs whose weights lie together: two 512-bit vectors of floats
constexpr int kGroup = 32;      // inputs that share a scale, of weights and of activations …
constexpr int kWide = 128;      // … and where a format has wide groups
// tokens of a KV block that kernels take together (blocks hold 16·k)
constexpr int kBlockTokens = 16;
constexpr int kSplit = 512;     // positions of KV that share a softmax; fixed, for exactness
constexpr int kRecordHead = 16;   // floats of a split's maximum and sum, before its sums of values
constexpr int kAttentionRows = 16;  // most rows of a sequence that one attention item takes
constexpr int kAlign = 64;      // bytes; of every buffer and panel
// Bytes that weights are prefetched ahead of their use where nothing was measured: what one core
// reads, at 40 GB/s, in the 200 ns that memory takes to answer.
constexpr int kDefaultAhead = 8192;
constexpr int kLogitBlock = 128;  // logits that share a stored maximum

// ---- weights ----

// The stored form of a matrix. Names give the bits of a code and what accompanies the codes; every
// format from U8 to Table4K means weight = scale · (code - offset), and + minimum if it has minima.
// In those after them a code stands for a float.
enum class Format : uint8_t {
#define OCTAVO_EACH_FORMAT(name) name,
#include "kernels/formats.inc"
#undef OCTAVO_EACH_FORMAT
};
#define OCTAVO_EACH_FORMAT(name) +1
constexpr int kFormats =
#include "kernels/formats.inc"
    ;
#undef OCTAVO_EACH_FORMAT

// A packed matrix [outputs, inputs]. Panel p holds outputs p·32 … p·32+31 with all their inputs,
// contiguously, scales inside, in the order in which a thread streams it. The last panel is
// padded with zeros. The inside of a panel depends on its format (gemm_*.inl, pack_*.inl).
struct Matrix {
  const uint8_t* data;
  size_t panel_bytes;
  int32_t outputs;
  int32_t inputs;
  Format format;
};

inline int num_panels(const Matrix& matrix) { return (matrix.outputs + kPanel - 1) / kPanel; }

// ---- adapters ----

constexpr int kDownRanks = 4;    // ranks of an adapter's first matrix whose weights lie together …
constexpr int kDownInputs = 32;  // … for so many inputs

// An adapter's first matrices for one product, that of each of its parts above the next one:
// [ranks, inputs] in blocks of kDownRanks by kDownInputs, rank by rank, with zeros around; the
// blocks of four ranks lie one after the other. In BF16 inputs that are 16 apart are neighbours.
struct Down {
  const uint8_t* data = nullptr;
  int32_t inputs = 0;
  int32_t ranks = 0;              // 0: the adapter leaves this product alone
  Format format = Format::F32;    // F32, F16 or BF16
  const float* scales = nullptr;  // of each rank, those of zeros included
};

// What an adapter does to 16 neighbouring sums of a packed matrix, in its own order. The second
// matrices' rows, [count][16], or [count / 2][16][2] in BF16, multiply `count` low numbers from
// `first` on, which is added to the sums.
struct UpHalf {
  const uint8_t* data = nullptr;
  int32_t first = 0;
  int32_t count = 0;
  const float* magnitudes = nullptr;  // [16], or nullptr: by which the sums, that included, grow
  const float* bias = nullptr;        // [16], or nullptr: is added behind that
};

// An adapter's second matrices for one packed matrix: two halves for each panel.
struct Up {
  const UpHalf* halves = nullptr;
  Format format = Format::F32;
};

// What adapters add to the sums of a product, before everything else.
struct Expand {
  const Up* const* ups = nullptr;  // [rows]: those of the row's adapter; nullptr: it has none
  const float* factors = nullptr;  // [rows]: of all that the adapter changes; `low` has it already
  int32_t matrix = 0;              // which of them
  const float* low = nullptr;      // [rows, low_stride]: what shrinking the rows made of them
  size_t low_stride = 0;
};

// Operations on a tile of outputs while it is in registers or the nearest cache.
enum class Activation : uint8_t {
  None, Silu, GeluErf, GeluTanh, Relu, Relu2, ClampedSwiglu, Sigmoid
};

struct Epilogue {
  float* out = nullptr;             // [rows, out_stride]
  size_t out_stride = 0;            // floats
  int32_t first_output = 0;         // column of `out` at which this matrix' outputs begin
  const float* bias = nullptr;      // [outputs] in the matrix' own order
  const float* residual = nullptr;  // [rows, residual_stride]: added, at the same columns as `out`
  size_t residual_stride = 0;
  float scale = 1.0f;               // of the sum, after the bias (logits)
  float cap = 0.0f;                 // tanh(y / cap) · cap, after the scale; 0: none
  Activation activation = Activation::None;
  // Gate and up interleaved: a panel has 16 gates and the 16 ups that go with them, and gives 16
  // outputs activation(gate) · up at columns first_output + panel · 16. With n < 16 pairs left the
  // last panel still has its ups at 16, zeros in between, and the matrix 32 · panel + 16 + n
  // outputs.
  bool gated = false;
  const int32_t* out_rows = nullptr;  // where row r goes, if not to row r (experts)
  const float* row_weights = nullptr; // row r is multiplied by this and *added* to out (experts)
  Expand expand;                      // of rows with adapters, if any has one
};

// ---- attention ----

enum class CacheFormat : uint8_t { F32, BF16, Int8, E4M3, E5M2, Int4 };

// Whether each cell has a scale of its own, by which its numbers are multiplied.
constexpr bool has_scales(CacheFormat format) {
  return format != CacheFormat::F32 && format != CacheFormat::BF16;
}

// One layer's cache. A cell is a token's key, or value, of one KV head: head_dim elements. Block b
// of KV head h begins at cell b · block_cells + h · head_cells of each array; other cells may lie
// between. Inside, per 16 tokens: F32 keys as [head_dim][16], values as [16][head_dim]; of other
// formats keys as [head_dim/2][16][2], values as [8][head_dim][2] (pairs of tokens), so that both
// products run over pairs. head_dim is a multiple of 8 and at most 576. Formats smaller than BF16
// keep one fp32 scale for each cell, in arrays beside. An element is a number; of Int4 a byte is a
// pair of numbers, the first one in its low half. Of latent rows only keys are kept: the last
// `latent` numbers of a key are its value, and the arrays of values are those of the keys. All but
// F32 latent rows are [head_dim/2][8][2][2]: of two dimensions pairs of tokens, since sums of
// values read each number by itself, and scores read vectors, which are soon rearranged. Int4
// keeps none.
struct Cache {
  void* keys;
  void* values;
  float* key_scales;    // if the format has_scales
  float* value_scales;
  CacheFormat format;
  int32_t block_size;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t latent;       // 0: values are kept beside the keys
  int64_t head_cells;   // from a KV head to the next; 0: all of them read the same cells
  int64_t block_cells;  // from a block to the next
};

struct AttentionShape {
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  float scale;
  float softcap;        // 0: none
  int32_t window;       // most recent positions seen, one's own included; 0: all
  const float* sinks;   // [heads] or nullptr
  bool both_ways;       // later positions are seen as well: `window` of them, or all
  // What is added to a score for the distance from the query to the position, from -reach to reach;
  // more is as far as that: [heads][2 · reach + 1] or nullptr.
  const float* distances;
  int32_t reach;
  int32_t latent;       // the last numbers of a key that are its value; 0: values are apart
  int32_t skipped = 0;  // leading positions that no later one sees
};

inline int value_dim(const AttentionShape& shape) {
  return shape.latent ? shape.latent : shape.head_dim;
}

// The first position that a row at this position sees.
inline int first_seen(const AttentionShape& shape, int position) {
  const int skipped = shape.skipped < position ? shape.skipped : position;
  const int first = shape.window > 0 ? position - shape.window + 1 : 0;
  return first > skipped ? first : skipped;
}

// A sequence's rows in this step: rows first_row … first_row+rows-1 stand at positions
// first_position …; table[i] is the block of positions i·block_size … Positions that are seen both
// ways go up to `end`.
struct SequenceRows {
  int32_t first_row;
  int32_t rows;
  int32_t first_position;
  const int32_t* table;
  int32_t end = 0;
};

// Rows of a sequence, at most kAttentionRows, with one KV head and its group of query heads, and
// the positions of splits [first_split, end_split).
struct AttentionPart {
  SequenceRows rows;
  int32_t kv_head;
  int32_t first_split;
  int32_t end_split;
};

// A row of some sequence, where several attend to the same cells.
struct TogetherRow {
  const float* q;   // of the KV head's first query head
  float* partials;  // of the split: attention_partial_floats(shape, 1)
};

// ---- rotary embedding, norms ----

struct RopeShape {
  const float* frequencies;  // [dimensions / 2]
  int32_t dimensions;        // of each head's, that turn
  bool interleaved;
  float magnitude;
};

// The numbers that are multiplied when peak rates are measured.
enum class Products : uint8_t { Float, Bf16, Int8 };

// Registers that hold matrices, with which a tier multiplies many rows: the processor's own, which
// the operating system must permit, or arrays in their place, for tests.
enum class Tiles : uint8_t { None, Processor, Emulated };

struct KernelTable {
  const char* name;  // "scalar", "avx2", "neon" …: a folder of isa/
  // How products of bf16 numbers are added up. Tiers with one order give equal bits everywhere,
  // and read the same prepared rows. "fma": one input after the other; "pairs": by vdpbf16ps;
  // "tiles": by tdpbf16ps; "dot": by BFDOT.
  const char* order;
  Tiles tiles;

  // gemm_*.inl, pack_*.inl. A format's products read prepared rows instead of fp32: `prepare` makes
  // them, one by one, prepared_bytes(format, inputs) each (a multiple of 64).
  size_t (*prepared_bytes)(Format format, int inputs);
  void (*prepare)(Format format, const float* x, size_t x_stride, int rows, int inputs,
                  uint8_t* prepared);
  // Rows × panels [first_panel, end_panel) of the matrix, through the epilogue. `scratch` is the
  // thread's own, gemm_scratch(matrix) bytes. Where a panel is read once, weights are prefetched
  // `ahead` bytes before they are needed (0: by the processor alone).
  size_t (*gemm_scratch)(const Matrix& matrix);
  void (*gemm)(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
               int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead);
  // One output row's weights as fp32: how an embedding is looked up in a packed matrix.
  void (*unpack_row)(const Matrix& matrix, int output, float* out);

  // adapters.inl. Low numbers tile · kDownRanks … of some rows, for tiles [first_tile, end_tile),
  // each times its scale and the factor.
  void (*shrink)(const Down& down, const float* const* x, float* const* low, int rows,
                 int first_tile, int end_tile, float factor);

  // elementwise.inl: [rows, size] each, rows apart by their strides (floats).
  void (*rms_norm)(const float* x, size_t x_stride, int rows, int size, const float* weight,
                   float eps, float offset, float* out, size_t out_stride);
  void (*layer_norm)(const float* x, size_t x_stride, int rows, int size, const float* weight,
                     const float* bias, float eps, float* out, size_t out_stride);
  void (*rope)(float* x, size_t x_stride, int rows, int heads, int head_dim,
               const int32_t* positions, const RopeShape& shape, const float* tables);
  void (*activate)(Activation activation, float* x, size_t x_stride, int rows, int size);
  void (*gate)(Activation activation, const float* gate, const float* up, size_t stride, int rows,
               int size, float* out, size_t out_stride);
  void (*add)(const float* x, const float* y, size_t x_stride, size_t y_stride, int rows, int size,
              float* out, size_t out_stride);
  void (*multiply)(const float* x, const float* y, size_t x_stride, size_t y_stride,
                   bool y_is_one_column, int rows, int size, float* out, size_t out_stride);
  void (*scale)(const float* x, size_t x_stride, float factor, int rows, int size, float* out,
                size_t out_stride);
  void (*soft_cap)(float* x, size_t x_stride, float cap, int rows, int size);

  // attention.inl
  void (*write_kv)(const Cache& cache, const float* k, const float* v, size_t stride,
                   const SequenceRows& sequence);
  // One part; the thread's next one, if it is known, has its first keys prefetched meanwhile. `q`
  // and `out` point at row 0 of the step. Without `partials` the splits are all those that the rows
  // see, and the result goes to out. With them the partial sums of each split go there in order,
  // attention_partial_floats(shape, rows) each, and merge_attention makes the same result of them.
  // `scratch` is the thread's own, attention_scratch(shape) bytes.
  size_t (*attention_scratch)(const AttentionShape& shape);
  size_t (*attention_partial_floats)(const AttentionShape& shape, int rows);
  void (*attention)(const Cache& cache, const AttentionShape& shape, const AttentionPart& part,
                    const AttentionPart* next, const float* q, size_t q_stride, float* out,
                    size_t out_stride, float* partials, uint8_t* scratch);
  // One split for rows of several sequences, at most kAttentionRows, all of which see all of it:
  // the same sums. `table` is any of theirs, for in that split all name the same blocks.
  void (*attention_together)(const Cache& cache, const AttentionShape& shape,
                             const TogetherRow* rows, int count, int kv_head, int split,
                             const int32_t* table, uint8_t* scratch);
  // The rows that begin at row first_row of the step, from the partial sums of all splits that
  // they see, in order.
  void (*merge_attention)(const AttentionShape& shape, int first_row, int rows, int kv_head,
                          int splits, const float* partials, float* out, size_t out_stride,
                          uint8_t* scratch);

  // sample.inl. The first of the largest; -1 if any logit is not finite.
  int32_t (*arg_max)(const float* logits, int size);
  // The token with the largest logit / temperature + noise; noise is a function of the keys and
  // the token (octavo/backends/torch/sampling/noise.py). -1 if any logit is not finite. `scratch`
  // is the thread's own, draw_scratch(size) bytes. draw_among: of the tokens given alone, all of
  // them finite.
  size_t (*draw_scratch)(int size);
  int32_t (*draw)(const float* logits, int size, double temperature, uint64_t one, uint64_t two,
                  uint8_t* scratch);
  int32_t (*draw_among)(const float* logits, const int32_t* tokens, int count, double temperature,
                        uint64_t one, uint64_t two);
  // out[i] = exp(logits[i] / temperature - most), none above 1; returns their sum, in 8 partial
  // sums that are made as those of `total`.
  double (*shares)(const float* logits, int size, double temperature, double most, double* out);
  // The parts of log-probabilities. maxima[b] becomes the largest of logits b · kLogitBlock …;
  // returns the largest of all, NaN if any is not finite.
  float (*block_maxima)(const float* logits, int size, float* maxima);
  // The sum of exp(logits[i] - most), in 16 partial sums: the l-th adds the logits 16 · i + l in
  // order, and they are added up in order, in every tier and wherever the row stands.
  double (*total)(const float* logits, int size, double most);
  int32_t (*count_above)(const float* logits, int size, float value);

  // peak_rates.inl. Reads every whole cache line once; the result depends on all of them.
  uint64_t (*read_all)(const uint8_t* data, size_t bytes);
  // Rounds of independent products and sums of such numbers that never leave the registers. Returns
  // the number of operations; a multiplication and an addition are two.
  int64_t (*multiply_registers)(Products products, int64_t rounds);
};

}  // namespace octavo
