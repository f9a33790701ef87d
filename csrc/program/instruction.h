// The instructions of a program, as plain data. Python fills them in (backends/native/emit.py).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// The rows of a buffer. Pairs are (row, chosen expert): top_k for each row. Wanted rows are the
// step's rows, in its order, whose logits or hidden states are requested.
enum class Space : uint8_t { Tokens, Logits, Hidden, Pairs, Wanted };
constexpr int kSpaces = 5;

// Columns of a buffer: where its rows begin, and how far apart they are.
struct Ref {
  enum class Where : uint8_t { Nothing, Scratch, LogitsOut, HiddenOut, KeptOut, StateOut };
  Where where = Where::Nothing;
  Space space = Space::Tokens;
  // Bytes a row before it, in the scratch of its space; or the number of a kept output.
  int64_t offset = 0;
  int32_t first = 0;   // column, in floats
  int32_t width = 0;
  int64_t stride = 0;  // floats
};

// Rows in the form that the products of a format read: in shared scratch, or in each thread's own.
struct Prepared {
  Space space = Space::Tokens;
  Format format = Format::F32;
  int32_t inputs = 0;
  int64_t offset = 0;  // bytes a row before it, among the prepared buffers
};

enum class Op : uint8_t {
  RopeTables, Embed, Select, Norm, Prepare, Gemm, Attention, Activate, Gate, Add, Multiply, Scale,
  SoftCap, Route, SortPairs, ExpertsIn, ExpertsOut, AddExperts, HeadGemm, Convolve, Shrink,
  WholeGemm, Keep, KeepKV, Recall, Spread, Given, Relay, AllReduce,
};

// Operations that steps in which no row has an adapter leave out.
constexpr bool is_for_adapters(Op op) { return op == Op::Shrink || op == Op::WholeGemm; }

struct NormShape {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 0.0f;
  float offset = 0.0f;
  int32_t heads = 0;         // 0: no norm; 1: over the whole row
  bool is_rms = true;
  bool weight_a_head = false;  // every head has its own weights
};

// One of the matrices whose outputs lie side by side in a product's result.
struct Piece {
  Matrix matrix;
  int32_t first_output = 0;
  const float* bias = nullptr;
  bool gated = false;
  int32_t adapted = -1;  // which of the packed matrices that adapters change; -1: they do not
};

struct RouteShape {
  int32_t experts = 0;
  int32_t top_k = 0;
  enum class Scores : uint8_t { Softmax, Chosen, Sigmoid } scores = Scores::Softmax;
  bool normalise = false;
  float scale = 1.0f;
  // Experts are chosen among those of the best `top_groups` of so many equal groups; a group is as
  // good as its `group_best` best experts together.
  int32_t groups = 1;
  int32_t top_groups = 1;
  int32_t group_best = 1;
  const float* bias = nullptr;  // [experts]: added to the scores for the choice alone
};

// A convolution of each channel over its own last inputs.
struct ConvolveShape {
  const float* weight = nullptr;  // [kernel][channels], the oldest input's first
  const float* bias = nullptr;    // [channels]
  int32_t kernel = 0;
};

struct Instruction {
  Op op = Op::Add;
  bool barrier = false;  // before it
  bool adapted_barrier = false;  // … in steps where rows have adapters
  Space space = Space::Tokens;
  Ref x, y, out;
  NormShape norm;        // Norm; Prepare, Shrink: of x, before it is prepared or shrunk
  Prepared prepared;     // Prepare writes it, Gemm and experts read it; a Gemm with x reads x,
                         // whose rows have this form and distance
  // Prepare: the number of x that each prepared one is; empty: they keep their order. Spread: the
  // number of out that each of x becomes.
  std::vector<int32_t> order;
  Activation activation = Activation::None;
  float factor = 1.0f;   // Scale, Gemm, Embed
  float cap = 0.0f;      // SoftCap, Gemm
  bool by_position = false;  // Embed: the table is looked up by position
  bool by_type = false;      // Embed: … by the type of the row's text
  int32_t first_row = -1;    // Embed: the first id of the table, which has not all; others are zero
  std::vector<Piece> pieces;  // Gemm; Embed: the table; experts: one an expert; HeadGemm: a head
  int32_t passed = 0;    // HeadGemm: the first numbers of a head that stay as they are

  // Attention: x is the queries, y the keys, `values` the values; queries and keys are normalised
  // and rotated in place. Of latent rows, y is a key without its last numbers, which `values` has;
  // only queries are rotated in place then. Keys and values of all rows are written; if `out` has
  // the wanted rows only, only those attend. KeepKV writes them without queries, for attentions of
  // other programs.
  Ref values;
  NormShape k_norm;
  AttentionShape attention{};
  int32_t rope = -1;     // which of the program's; -1: none
  int32_t group = 0;     // of KV blocks
  int32_t layer = 0;     // in the group
  int32_t plan = 0;      // which of the program's attention plans

  Ref low;               // Gemm: what Shrink made of its rows
  // Shrink, Embed, WholeGemm: which of the products that adapters change; -1: none.
  int32_t product = -1;

  ConvolveShape convolve;  // of x, with states of `group` and `layer`
  // Keep: each row of x goes to the place of its position in `group` and `layer`. Recall: each row
  // of out comes from that of the position before it; the first position's is zero.
  // Given: the rows of out come from the caller.
  // Relay: the further stages make out of x.

  RouteShape route;
  Ref chosen;            // Route writes it, SortPairs reads it
  // SortPairs, ExpertsIn, ExpertsOut: a rank has experts as a whole, and matrices without data in
  // place of the others'. ExpertsOut then leaves the pairs' products apart, for AddExperts.
  bool are_whole = false;
  int32_t redundant = 0;  // … experts of this mixture that are in two ranks
  int32_t mixture = 0;    // … which of the program's
};

}  // namespace octavo
