// The running step: what is checked before it, and which of its rows are wanted.
#include "program/step.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace octavo {

namespace {

constexpr int32_t kMostRows = 1 << 20;

void check_sequence(const StepInputs& in, const KvCache& cache, int s) {
  const int first = in.row_starts[s], end = in.row_starts[s + 1];
  if (first >= end) throw std::invalid_argument("a sequence has no rows");
  if (end > in.num_rows)
    throw std::invalid_argument("row_starts must go up to the number of rows");
  for (int row = first; row < end; ++row)
    if (in.positions[row] < 0 || in.positions[row] != in.positions[first] + row - first)
      throw std::invalid_argument("positions must go up by one from 0 or more");
  const int blocks = in.positions[end - 1] / cache.block_size() + 1;
  if (blocks > in.table_width) throw std::invalid_argument("a table of blocks is too short");
  for (int group = 0; group < static_cast<int>(in.tables.size()); ++group) {
    const int32_t* table = in.tables[group] + static_cast<size_t>(s) * in.table_width;
    const int64_t count = cache.num_blocks(group);
    for (int index = 0; index < blocks; ++index)
      if (table[index] < 0 || table[index] >= count)
        throw std::invalid_argument("a table names block " + std::to_string(table[index]) +
                                    " of a cache of " + std::to_string(count));
  }
}

void check_echo(const StepInputs& in, const RowEcho& echo) {
  if (echo.rows < 1 || echo.first_row < 0 || echo.first_row > in.num_rows - echo.rows ||
      echo.sequence < 0 || echo.sequence >= in.sequences)
    throw std::invalid_argument("an echo is of rows, or for a sequence, that the step lacks");
  const int32_t first = in.positions[in.row_starts[echo.sequence]];
  for (int32_t row = echo.first_row; row < echo.first_row + echo.rows; ++row)
    if (in.positions[row] != in.positions[echo.first_row] + row - echo.first_row ||
        in.positions[row] >= first)
      throw std::invalid_argument("an echo's positions must go up by one, before its sequence's");
}

void check(const StepInputs& in, const KvCache& cache, int groups) {
  if (static_cast<int>(in.tables.size()) > cache.groups())
    throw std::invalid_argument("there are more tables of blocks than groups in the cache");
  if (static_cast<int>(in.tables.size()) < groups)
    throw std::invalid_argument("a table of blocks is missing");
  if (in.num_rows < 1 || in.num_rows > kMostRows)
    throw std::invalid_argument("a step of " + std::to_string(in.num_rows) +
                                " rows: it must have 1 to " + std::to_string(kMostRows));
  if (in.row_starts[0] != 0 || in.row_starts[in.sequences] != in.num_rows)
    throw std::invalid_argument("row_starts must go from 0 to the number of rows");
  for (int s = 0; s < in.sequences; ++s) check_sequence(in, cache, s);
  for (int32_t echo = 0; echo < in.num_echoes; ++echo) check_echo(in, in.echoes[echo]);
  const auto check_rows = [&](const int32_t* rows, int count) {
    for (int row = 0; row < count; ++row)
      if (rows[row] < 0 || rows[row] >= in.num_rows)
        throw std::invalid_argument("a wanted row is not one of the step's rows");
  };
  check_rows(in.logits_rows, in.num_logits);
  check_rows(in.hidden_rows, in.num_hidden);
}

}  // namespace

void Step::begin(const StepInputs& inputs, const KvCache& cache, int groups, int top_k) {
  check(inputs, cache, groups);
  inputs_ = inputs;
  rows_[static_cast<int>(Space::Tokens)] = inputs.num_rows;
  rows_[static_cast<int>(Space::Logits)] = inputs.num_logits;
  rows_[static_cast<int>(Space::Hidden)] = inputs.num_hidden;
  rows_[static_cast<int>(Space::Pairs)] = inputs.num_rows * top_k;
  find_wanted();
  rows_[static_cast<int>(Space::Wanted)] = static_cast<int32_t>(wanted_rows_.size());
}

void Step::assume(int32_t rows, int32_t logits, int32_t hidden, int top_k) {
  rows_[static_cast<int>(Space::Tokens)] = rows;
  rows_[static_cast<int>(Space::Logits)] = logits;
  rows_[static_cast<int>(Space::Hidden)] = hidden;
  rows_[static_cast<int>(Space::Pairs)] = rows * top_k;
  rows_[static_cast<int>(Space::Wanted)] = std::min(rows, logits + hidden);
}

void Step::find_wanted() {
  const StepInputs& in = inputs_;
  wanted_places_.assign(in.num_rows, -1);
  wanted_rows_.clear();
  for (int row = 0; row < in.num_logits; ++row) wanted_places_[in.logits_rows[row]] = 0;
  for (int row = 0; row < in.num_hidden; ++row) wanted_places_[in.hidden_rows[row]] = 0;
  for (int32_t row = 0; row < in.num_rows; ++row) {
    if (wanted_places_[row] < 0) continue;
    wanted_places_[row] = static_cast<int32_t>(wanted_rows_.size());
    wanted_rows_.push_back(row);
  }
  const auto places_of = [&](const int32_t* rows, int count, std::vector<int32_t>& places) {
    places.resize(count);
    for (int row = 0; row < count; ++row) places[row] = wanted_places_[rows[row]];
  };
  places_of(in.logits_rows, in.num_logits, logits_places_);
  places_of(in.hidden_rows, in.num_hidden, hidden_places_);
}

const int32_t* Step::selected(Space space, Space x_space) const {
  if (space == Space::Wanted) return wanted_rows_.data();
  const bool is_logits = space == Space::Logits;
  if (x_space == Space::Wanted) return (is_logits ? logits_places_ : hidden_places_).data();
  return is_logits ? inputs_.logits_rows : inputs_.hidden_rows;
}

}  // namespace octavo
