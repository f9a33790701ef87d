// The running step: its rows, and which of them are wanted.
#pragma once

#include <cstdint>
#include <vector>

#include "program/instruction.h"
#include "program/kv_cache.h"

namespace octavo {

// Rows of the step that a sequence keeps which has the same positions in other blocks.
struct RowEcho {
  int32_t first_row, rows, sequence;
};

// What a program computes of a step: where there are further stages, the part before they compute,
// and later, when their rows have come, the part behind that.
enum class Part : int32_t { Whole, BeforeStages, BehindStages };

// A step as the caller passes it, in the caller's memory.
struct StepInputs {
  Part part = Part::Whole;
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* types = nullptr;  // of texts; nullptr: each row's is 0
  const int32_t* row_starts = nullptr;
  int32_t sequences = 0;
  std::vector<const int32_t*> tables;  // for each group of layers: [sequences, table_width]
  int32_t table_width = 0;
  const int32_t* logits_rows = nullptr;  // which of the step's rows
  const int32_t* hidden_rows = nullptr;
  const int32_t* adapters = nullptr;     // the slot of each row's adapter, or -1; nullptr: none
  int32_t num_rows = 0;
  int32_t num_logits = 0;
  int32_t num_hidden = 0;
  float* logits_out = nullptr;
  float* hidden_out = nullptr;
  std::vector<float*> kept_out;  // of each kept layer, for the rows of hidden_out
  float* state_out = nullptr;    // the last hidden states of the rows of logits_out, if wanted
  const float* given = nullptr;  // such states of another program, one for each row of this step
  int64_t state_stride = 0;      // floats from one state to the next
  // Rows that are kept in the tables of another sequence too, at their own positions.
  const RowEcho* echoes = nullptr;
  int32_t num_echoes = 0;
};

class Step {
 public:
  // Throws std::invalid_argument if anything in the inputs would lead outside of memory. `groups`
  // are the groups of layers with tables of their own, `top_k` the experts that each row chooses.
  void begin(const StepInputs& inputs, const KvCache& cache, int groups, int top_k);

  // Takes on the sizes of the largest step, to make memory for it.
  void assume(int32_t rows, int32_t logits, int32_t hidden, int top_k);

  const StepInputs& inputs() const { return inputs_; }
  int rows(Space space) const { return rows_[static_cast<int>(space)]; }

  // The wanted rows, each once, in the step's order.
  const std::vector<int32_t>& wanted_rows() const { return wanted_rows_; }
  // The place of each row among the wanted ones; -1: it is not wanted.
  const std::vector<int32_t>& wanted_places() const { return wanted_places_; }

  // The rows of x that a selection of this space (Logits, Hidden, Wanted) takes; x has all rows of
  // the step, or the wanted ones.
  const int32_t* selected(Space space, Space x_space) const;

 private:
  void find_wanted();

  StepInputs inputs_;
  int32_t rows_[kSpaces] = {};
  std::vector<int32_t> wanted_rows_;
  std::vector<int32_t> wanted_places_;
  std::vector<int32_t> logits_places_;  // of each row of logits among the wanted rows
  std::vector<int32_t> hidden_places_;
};

}  // namespace octavo
