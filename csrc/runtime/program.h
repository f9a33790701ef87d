// A model's forward pass as a list of instructions, and how a team of threads replays it.
//
// The list is made once. A step brings its rows: their number is the only size that is not fixed,
// so scratch is planned in bytes a row and grows with the most rows there have been.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/table.h"
#include "runtime/arena.h"
#include "runtime/attention_plan.h"
#include "runtime/team.h"
#include "runtime/workers.h"

namespace octavo {

// What rows stand for. Pairs are (row, chosen expert): top_k for each row. Wanted are those of the
// step's rows, in its order, that logits or hidden states are wanted of.
enum class Space : uint8_t { Tokens, Logits, Hidden, Pairs, Wanted };
constexpr int kSpaces = 5;

// Columns of a buffer: where its rows begin, and how far they are apart.
struct Ref {
  enum class Where : uint8_t { Nothing, Scratch, LogitsOut, HiddenOut };
  Where where = Where::Nothing;
  Space space = Space::Tokens;
  int64_t offset = 0;  // bytes a row in front of it, in its space's scratch
  int32_t first = 0;   // column, in floats
  int32_t width = 0;
  int64_t stride = 0;  // floats
};

// Rows in the form that a format's products read: in shared scratch, or in every thread's own.
struct Prepared {
  Space space = Space::Tokens;
  Format format = Format::F32;
  int32_t inputs = 0;
  int64_t offset = 0;  // bytes a row in front of it, among prepared buffers
};

enum class Op : uint8_t {
  RopeTables, Embed, Select, Norm, Prepare, Gemm, Attention, Activate, Gate, Add, Multiply, Scale,
  SoftCap, Route, SortPairs, ExpertsIn, ExpertsOut,
};

struct NormShape {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 0.0f;
  float offset = 0.0f;
  int32_t heads = 0;         // 0: no norm; 1: over the whole row
  bool is_rms = true;
  bool weight_a_head = false;  // every head has weights of its own
};

// One of the matrices whose outputs lie side by side in a product's result.
struct Piece {
  Matrix matrix;
  int32_t first_output = 0;
  const float* bias = nullptr;
  bool gated = false;
};

struct RouteShape {
  int32_t experts = 0;
  int32_t top_k = 0;
  enum class Scores : uint8_t { Softmax, Chosen, Sigmoid } scores = Scores::Softmax;
  bool normalise = false;
  float scale = 1.0f;
};

struct Instruction {
  Op op = Op::Add;
  bool barrier = false;  // all threads meet before it
  Space space = Space::Tokens;
  Ref x, y, out;
  NormShape norm;        // Norm; Prepare: of x, before it is prepared
  Prepared prepared;     // Prepare writes it, Gemm and experts read it
  Activation activation = Activation::None;
  float factor = 1.0f;   // Scale, Gemm, Embed
  float cap = 0.0f;      // SoftCap, Gemm
  bool by_position = false;  // Embed: the table is looked up by position
  std::vector<Piece> pieces;  // Gemm; Embed: the table; experts: one an expert

  // Attention: x is queries, y keys, `values` values, normed and turned in place. Of all rows keys
  // and values are written; where `out` has the wanted rows only those attend.
  Ref values;
  NormShape k_norm;
  AttentionShape attention{};
  int32_t rope = -1;     // which of the program's; -1: none
  int32_t group = 0;     // of KV blocks
  int32_t layer = 0;     // in the group
  int32_t plan = 0;      // which of the program's attention plans

  RouteShape route;
  Ref chosen;            // Route writes it, SortPairs reads it
};

struct Rope {
  std::vector<float> frequencies;
  RopeShape shape{};
};

// The step's attention for all layers of one shape and window, of all rows or of those wanted.
struct Attending {
  AttentionShape shape;
  bool of_wanted;
  std::vector<int32_t> groups;  // of layers, of which each has its tables of blocks
  AttentionPlan plan;
};

// What a step brings, in the caller's memory.
struct Step {
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* row_starts = nullptr;
  int32_t sequences = 0;
  std::vector<const int32_t*> tables;  // a group: [sequences, table_width]
  int32_t table_width = 0;
  const int32_t* selected[kSpaces] = {};  // Logits, Hidden (and, worked out, Wanted): which rows
  float* logits_out = nullptr;
  float* hidden_out = nullptr;
  int32_t rows[kSpaces] = {};
};

class Program {
 public:
  Program(const KernelTable& kernels, std::shared_ptr<Team> team);
  ~Program();
  Program(const Program&) = delete;

  // ---- made once ----
  void append(Instruction instruction);
  int add_rope(Rope rope);
  void set_scratch(Space space, int64_t row_bytes, int64_t prepared_row_bytes);
  // All layers' caches: `layers` times keys and values, untouched until they are used.
  void make_caches(CacheFormat format, int layers, int64_t blocks, int block_size, int kv_heads,
                   int head_dim);
  void copy_block(int64_t source, int64_t destination);

  // ---- every step ----
  void run(const Step& step);  // callers take turns
  int64_t logits_stride() const { return logits_stride_; }  // floats from row to row of the results
  int64_t hidden_stride() const { return hidden_stride_; }

  void set_profiling(bool on);
  // Worker 0's, by instruction: at work, and waiting for the others before it.
  const std::vector<double>& seconds() const { return seconds_; }
  const std::vector<double>& waits() const { return waits_; }
  int threads() const { return team_->size(); }
  size_t scratch_bytes() const;

 private:
  void check(const Step& step) const;
  void find_wanted();
  void make_room(const Step& step);
  void work(int index);
  void execute(const Instruction& i, Shares& shares, int index, Worker& worker);
  void rows(const Instruction& i, int first, int end);
  void rope_tables(int first, int end);
  void embed(const Instruction& i, int first, int end);
  void select(const Instruction& i, int first, int end);
  void route(const Instruction& i, int first, int end);
  void prepare(const Instruction& i, int index, Worker& worker);
  void gemm(const Instruction& i, Shares& shares, int index, Worker& worker);
  Epilogue epilogue_of(const Instruction& i, const Piece& piece) const;
  void normalise(const NormShape& norm, const float* x, size_t x_stride, int rows, int width,
                 float* out, size_t out_stride) const;

  // program_attention.cpp
  void attention(const Instruction& i, Shares& shares, int index, Worker& worker);
  void finish_rows(const Instruction& i, int first, int end);
  const float* turn_alone(const Instruction& i, const AttentionItem& item, Worker& worker);
  void attend_together(const Instruction& i, const AttentionItem& item, bool alone,
                       const AttentionCall& call, Worker& worker);
  void turn_heads(const Instruction& i, const NormShape& norm, int row, int first, int heads,
                  float* x) const;
  void plan_attention();
  void turn(int rope, float* x, size_t stride, int first, int rows, int width, int head_dim) const;

  // program_experts.cpp
  void sort_pairs(const Instruction& i);
  void experts_in(const Instruction& i, Shares& shares, int index, Worker& worker);
  void experts_out(const Instruction& i, Shares& shares, int index, Worker& worker);

  int rows_of(Space space) const { return step_.rows[static_cast<int>(space)]; }
  float* at(const Ref& ref, int row = 0) const;
  bool is_private(const Prepared& prepared) const;
  uint8_t* prepared_at(const Prepared& prepared, const Worker& worker) const;

  const KernelTable& kernels_;
  std::shared_ptr<Team> team_;
  std::vector<Instruction> instructions_;
  std::vector<std::unique_ptr<Shares>> shares_;  // an instruction
  std::vector<Rope> ropes_;
  std::vector<Attending> plans_;
  std::vector<float> partials_;  // of whichever plan is at work: all meet between two attentions
  std::vector<Cache> caches_;
  Pages cache_pages_;
  float* cache_scales_ = nullptr;
  size_t block_bytes_ = 0;    // a block's cells of all layers
  int64_t block_scales_ = 0;  // and their scales, where cells have them
  int64_t cache_blocks_ = 0;
  int groups_ = 0;
  int top_k_ = 0;
  int64_t logits_stride_ = 0;
  int64_t hidden_stride_ = 0;

  int64_t row_bytes_[kSpaces] = {};
  int64_t prepared_row_bytes_[kSpaces] = {};
  size_t kernel_scratch_ = 0;
  size_t widest_ = 0;  // floats of the widest row, or rows, that a thread turns in its own memory

  // ---- of the running step ----
  std::mutex turn_;
  Step step_;
  uint32_t epoch_ = 0;
  int32_t capacity_[kSpaces] = {};
  Pages scratch_[kSpaces];
  Pages prepared_[kSpaces];
  std::vector<std::vector<float>> tables_;  // a rope: [rows, dimensions]
  std::vector<Worker> workers_;
  std::vector<std::vector<SequenceRows>> sequences_;  // a group of KV blocks
  // The same of wanted rows that follow each other; first_row counts those that are wanted.
  std::vector<std::vector<SequenceRows>> wanted_sequences_;
  std::vector<int32_t> wanted_rows_;
  std::vector<int32_t> wanted_places_;     // of each row among the wanted ones; -1: it is none
  std::vector<int32_t> places_[kSpaces];   // Logits, Hidden: of each of theirs
  std::vector<int32_t> pair_rows_;    // [pairs], by expert and then by row: which row
  std::vector<float> pair_weights_;   // the same order
  std::vector<int32_t> pair_starts_;  // [experts + 1]

  bool profiling_ = false;
  std::vector<double> seconds_;
  std::vector<double> waits_;
};

}  // namespace octavo
