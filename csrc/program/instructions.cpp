// The execution of each instruction: its rows or panels are divided among the threads, which call
// the kernels.
#include <algorithm>
#include <cstring>

#include "program/program.h"
#include "step/further_stages.h"

namespace octavo {

namespace {

// How many rows ahead a row is prefetched; another thread wrote much of it last.
constexpr int kRowsAhead = 2;
// The score of a token that a smaller vocabulary lacks; a finite one, as those of all others.
constexpr float kUnlikely = -1e30f;

void prefetch_row(const float* row, int width) {
  for (int column = 0; column < width; column += kAlign / 4) __builtin_prefetch(row + column, 0, 2);
}

}  // namespace

void Program::execute(const Instruction& i, Shares& shares, int index, Worker& worker) {
  switch (i.op) {
    case Op::Embed: return embed(i, index, worker);
    case Op::WholeGemm: return whole_gemm(i, index, worker);
    case Op::Prepare: return prepare(i, index, worker);
    case Op::Gemm: return gemm(i, shares, index, worker);
    case Op::Attention: return attention_.run(i, shares, index, worker);
    case Op::KeepKV: return attention_.keep(i, index, worker);
    case Op::Convolve: return convolve(i, index);
    case Op::Shrink: return shrink(i, index, worker);
    case Op::HeadGemm: return head_gemm(i, shares, index, worker);
    case Op::ExpertsIn: return experts_.multiply_in(i, shares, index, worker);
    case Op::ExpertsOut: return experts_.multiply_out(i, shares, index, worker);
    case Op::SortPairs:  // each rank has the pairs for itself
      if (index == 0) experts_.sort_pairs(i);
      return;
    case Op::AllReduce: return all_reduce(i, index);
    case Op::Relay:
      if (team_->number(index) == 0) relay(i);
      return;
    default: break;
  }
  int first, end;
  const int rows = context_.step.rows(i.space);
  if (i.op == Op::RopeTables) share_of(index, team_->size(), rows, first, end);  // likewise
  else share_of(team_->number(index), team_->all(), rows, first, end);
  if (first < end) execute_rows(i, first, end);
}

void Program::execute_rows(const Instruction& i, int first, int end) {
  const int count = end - first, width = i.x.width;
  float* x = context_.at(i.x, first);
  float* out = context_.at(i.out, first);
  switch (i.op) {
    case Op::RopeTables:
      return ropes_.make_tables(context_.step.inputs().positions, first, end);
    case Op::Select: return select(i, first, end);
    case Op::Keep: return keep(i, first, end);
    case Op::Recall: return recall(i, first, end);
    case Op::Spread: return spread(i, first, end);
    case Op::Given: return take_given(i, first, end);
    case Op::Route: return experts_.route(i, first, end);
    case Op::AddExperts: return experts_.add_up(i, first, end);
    case Op::Norm:
      return normalise(kernels_, i.norm, x, i.x.stride, count, width, out, i.out.stride);
    case Op::Scale: return kernels_.scale(x, i.x.stride, i.factor, count, width, out, i.out.stride);
    case Op::Add:
      return kernels_.add(x, context_.at(i.y, first), i.x.stride, i.y.stride, count, width, out,
                          i.out.stride);
    case Op::Multiply:
      return kernels_.multiply(x, context_.at(i.y, first), i.x.stride, i.y.stride, i.y.width == 1,
                               count, width, out, i.out.stride);
    case Op::Gate:
      return kernels_.gate(i.activation, x, context_.at(i.y, first), i.x.stride, count, width, out,
                           i.out.stride);
    case Op::Activate:
    case Op::SoftCap:
      if (out != x) kernels_.scale(x, i.x.stride, 1.0f, count, width, out, i.out.stride);
      if (i.op == Op::SoftCap) return kernels_.soft_cap(out, i.out.stride, i.cap, count, width);
      return kernels_.activate(i.activation, out, i.out.stride, count, width);
    default: return;
  }
}

// Each rank looks up the rows of those ids whose part of the table it has.
void Program::embed(const Instruction& i, int index, Worker& worker) {
  const StepInputs& in = context_.step.inputs();
  const int32_t* ids = i.by_type ? in.types : i.by_position ? in.positions : in.token_ids;
  const int width = i.out.width;
  const bool is_adapted = i.product >= 0 && context_.adapters.are_used();
  int first, end;
  share_of(index, team_->size(), context_.step.rows(i.space), first, end);
  for (int row = first; row < end; ++row) {
    float* out = context_.at(i.out, row);
    const int32_t id = ids ? ids[row] : 0;
    if (i.first_row >= 0) {
      look_up_share(i, id - i.first_row, out);
    } else if (!look_up(i, id, out)) {
      continue;
    }
    if (is_adapted) change_looked_up(i, row, id, worker.row);
    if (i.factor != 1.0f) kernels_.scale(out, width, i.factor, 1, width, out, width);
  }
}

// Another rank has the rows that this one lacks, and the sum of all is the row.
void Program::look_up_share(const Instruction& i, int64_t id, float* out) const {
  int64_t rows = 0;
  for (const Piece& piece : i.pieces) rows += piece.matrix.outputs;
  if (id < 0 || id >= rows)
    std::fill_n(out, i.out.width, 0.0f);
  else
    look_up(i, static_cast<int32_t>(id), out);
}

bool Program::look_up(const Instruction& i, int32_t id, float* out) const {
  const Piece* table = i.pieces.data();
  // Pieces are consecutive runs of rows. Ids were checked when the request arrived; an id that is
  // out of range nevertheless must not read beyond the table.
  while (table + 1 < i.pieces.data() + i.pieces.size() && id >= table->matrix.outputs)
    id -= (table++)->matrix.outputs;
  id = std::clamp(id, 0, table->matrix.outputs - 1);
  const Share mine = team_->share(num_panels(table->matrix));
  if (id / kPanel < mine.first || id / kPanel >= mine.end) return false;
  kernels_.unpack_row(table->matrix, id, out);
  return true;
}

// Changes a looked-up row as its adapter does. `spare` has room for such a row.
void Program::change_looked_up(const Instruction& i, int row, int32_t id, float* spare) const {
  const Adapters& adapters = context_.adapters;
  const PackedAdapter* adapter = adapters.at(i.space, row);
  if (!adapter) return;
  const float factor = adapters.scale(i.space, row);
  float* out = context_.at(i.out, row);
  const Matrix& own = adapter->whole(i.product).matrix;
  if (own.data && factor != 0.0f)
    kernels_.unpack_row(own, std::clamp(id, 0, own.outputs - 1), out);
  const Lows& lows = adapter->lows(i.product);
  if (!lows.data) return;
  const Down& up = adapter->downs()[i.product];
  const float* low =
      lows.data + static_cast<size_t>(std::clamp(id, 0, lows.rows - 1)) * up.inputs;
  const int tiles = (up.ranks + kDownRanks - 1) / kDownRanks;
  kernels_.shrink(up, &low, &spare, 1, 0, tiles, factor);
  kernels_.add(out, spare, 0, 0, 1, i.out.width, out, 0);
}

void Program::select(const Instruction& i, int first, int end) {
  const int32_t* rows = context_.step.selected(i.space, i.x.space);
  for (int row = first; row < end; ++row)
    std::memcpy(context_.at(i.out, row), context_.at(i.x, rows[row]), i.x.width * sizeof(float));
}

// The place of the row kept `before` positions ahead of a row of the step; nullptr: there is none.
float* Program::kept_row(const Instruction& i, int32_t row, int before, int width) const {
  const StepInputs& in = context_.step.inputs();
  const int32_t* after = std::upper_bound(in.row_starts, in.row_starts + in.sequences + 1, row);
  return kept_row_of(i, after - in.row_starts - 1, in.positions[row] - before, width);
}

// The same by a sequence of the step, in whose tables it lies, and its position.
float* Program::kept_row_of(const Instruction& i, int64_t sequence, int32_t position,
                            int width) const {
  const StepInputs& in = context_.step.inputs();
  if (position < 0) return nullptr;
  const int32_t* table = in.tables[i.group] + sequence * in.table_width;
  const int size = context_.cache->block_size();
  return context_.cache->state(i.group, i.layer, table[position / size]) +
         static_cast<int64_t>(position % size) * width;
}

void Program::keep(const Instruction& i, int first, int end) {
  const int32_t* rows = i.space == Space::Tokens ? nullptr
                                                 : context_.step.selected(i.space, Space::Tokens);
  for (int row = first; row < end; ++row)
    std::memcpy(kept_row(i, rows ? rows[row] : row, 0, i.x.width), context_.at(i.x, row),
                i.x.width * sizeof(float));
  const StepInputs& in = context_.step.inputs();
  for (int32_t echo = 0; echo < in.num_echoes && !rows; ++echo) {
    const RowEcho& each = in.echoes[echo];
    const int stop = std::min(end, each.first_row + each.rows);
    for (int row = std::max(first, each.first_row); row < stop; ++row)
      std::memcpy(kept_row_of(i, each.sequence, in.positions[row], i.x.width),
                  context_.at(i.x, row), i.x.width * sizeof(float));
  }
}

void Program::recall(const Instruction& i, int first, int end) {
  for (int row = first; row < end; ++row) {
    const float* kept = kept_row(i, row, 1, i.out.width);
    float* out = context_.at(i.out, row);
    if (kept)
      std::memcpy(out, kept, i.out.width * sizeof(float));
    else
      std::fill_n(out, i.out.width, 0.0f);
  }
}

void Program::spread(const Instruction& i, int first, int end) {
  for (int row = first; row < end; ++row) {
    const float* x = context_.at(i.x, row);
    float* out = context_.at(i.out, row);
    std::fill_n(out, i.out.width, kUnlikely);
    for (size_t column = 0; column < i.order.size(); ++column) out[i.order[column]] = x[column];
  }
}

void Program::take_given(const Instruction& i, int first, int end) {
  const StepInputs& in = context_.step.inputs();
  for (int row = first; row < end; ++row)
    std::memcpy(context_.at(i.out, row), in.given + row * in.state_stride,
                i.out.width * sizeof(float));
}

void Program::relay(const Instruction& i) {
  const Step& step = context_.step;
  const auto rows_at = [&](const Ref& ref) {
    return RowsAt{context_.at(ref), step.rows(ref.space), ref.width, ref.stride};
  };
  if (step.inputs().part == Part::BeforeStages) stages_->send(step.inputs(), rows_at(i.x));
  else stages_->receive(rows_at(i.out));
}

// The sum of what all ranks have in x, in the order of the ranks, and behind y if there is one.
void Program::all_reduce(const Instruction& i, int index) {
  const int rows = context_.step.rows(i.space), width = i.x.width;
  const int most = sums_->rows_at_once(width);
  for (int begin = 0; begin < rows; begin += most) {
    const int all = std::min(most, rows - begin);
    int first, end;
    share_of(index, team_->size(), all, first, end);
    const int count = end - first, row = begin + first;
    const size_t before = size_t(first) * width;
    float* own = sums_->own(index, before);
    for (int each = 0; each < count; ++each)
      std::memcpy(own + each * width, context_.at(i.x, row + each), width * sizeof(float));
    sums_->meet(index, size_t(count) * width, size_t(all) * width);
    if (count == 0) continue;
    float* out = context_.at(i.out, row);
    const bool has_addend = i.y.where != Ref::Where::Nothing;
    const float* total = has_addend ? context_.at(i.y, row) : sums_->of(0, index, before);
    int64_t stride = has_addend ? i.y.stride : width;
    for (int rank = has_addend ? 0 : 1; rank < sums_->count(); ++rank) {
      const float* part = sums_->of(rank, index, before);
      kernels_.add(total, part, stride, width, count, width, out, i.out.stride);
      total = out;
      stride = i.out.stride;
    }
  }
}

void Program::prepare(const Instruction& i, int index, Worker& worker) {
  const Prepared& p = i.prepared;
  const bool alone = context_.scratch.is_private(context_.step, p);
  const size_t bytes = kernels_.prepared_bytes(p.format, p.inputs);
  uint8_t* to = context_.prepared_at(p, worker);
  int first = 0, end = context_.step.rows(p.space);
  if (!alone) share_of(team_->number(index), team_->all(), end, first, end);
  if (i.norm.heads == 0 && i.order.empty()) {
    if (first < end)
      kernels_.prepare(p.format, context_.at(i.x, first), i.x.stride, end - first, p.inputs,
                       to + first * bytes);
  } else {
    for (int row = first; row < end; ++row) {
      if (row + kRowsAhead < end) prefetch_row(context_.at(i.x, row + kRowsAhead), i.x.width);
      const float* x = context_.at(i.x, row);
      if (i.norm.heads != 0) {
        normalise(kernels_, i.norm, context_.at(i.x, row), i.x.stride, 1, i.x.width, worker.row,
                  i.x.width);
        x = worker.row;
      }
      if (!i.order.empty()) {
        float* in_order = worker.row + i.x.width;
        for (size_t input = 0; input < i.order.size(); ++input) in_order[input] = x[i.order[input]];
        x = in_order;
      }
      kernels_.prepare(p.format, x, i.x.width, 1, p.inputs, to + row * bytes);
    }
  }
  if (!alone) team_->barrier(index);
}

void Program::gemm(const Instruction& i, Shares& shares, int index, Worker& worker) {
  const uint8_t* prepared = i.x.where == Ref::Where::Nothing
                                ? context_.prepared_at(i.prepared, worker)
                                : reinterpret_cast<const uint8_t*>(context_.at(i.x));
  const int rows = context_.step.rows(i.prepared.space);
  int panels = 0;
  for (const Piece& piece : i.pieces) panels += team_->share(num_panels(piece.matrix)).count();
  shares.take(index, panels, context_.epoch, [&](int first, int end) {
    for (const Piece& piece : i.pieces) {
      const Share mine = team_->share(num_panels(piece.matrix));
      const int count = mine.count();
      if (first < count && end > 0)
        context_.products.gemm(piece.matrix, prepared, rows, mine.first + std::max(first, 0),
                               mine.first + std::min(end, count), worker.kernel_scratch,
                               context_.epilogue_of(i, piece));
      first -= count;
      end -= count;
    }
  });
}

// Each thread has some channels of all rows, so that it alone reads and writes their states. The
// entry of a block has the state after its last position so far: a sequence's rows begin with that
// of the position before them, and leave one in each of their blocks that has an entry.
void Program::convolve(const Instruction& i, int index) {
  const StepInputs& in = context_.step.inputs();
  const ConvolveShape& shape = i.convolve;
  const int channels = i.x.width, kept = shape.kernel - 1, size = context_.cache->block_size();
  const bool of_wanted = i.out.space == Space::Wanted;
  int begin, end;
  share_of(team_->number(index), team_->all(), channels, begin, end);
  for (int s = 0; s < in.sequences && begin < end; ++s) {
    const int row = in.row_starts[s], rows = in.row_starts[s + 1] - row;
    const int first = in.positions[row];
    const int32_t* table = in.tables[i.group] + static_cast<size_t>(s) * in.table_width;
    const float* before =
        first ? context_.cache->state(i.group, i.layer, table[(first - 1) / size]) : nullptr;
    // The input `at` rows behind the first one; those before it are the state's.
    const auto input = [&](int at) {
      return at >= 0 ? context_.at(i.x, row + at) : before + (kept + at) * channels;
    };
    for (int r = 0; r < rows; ++r) {
      const int place = of_wanted ? context_.step.wanted_places()[row + r] : row + r;
      if (place < 0) continue;
      float* out = context_.at(i.out, place);
      for (int c = begin; c < end; ++c) out[c] = 0.0f;
      for (int tap = 0; tap <= kept; ++tap) {
        const float* weight = shape.weight + static_cast<size_t>(tap) * channels;
        if (!before && r + tap < kept) {  // zeros, which a state keeps as such
          for (int c = begin; c < end; ++c) out[c] += 0.0f * weight[c];
          continue;
        }
        const float* x = input(r + tap - kept);
        for (int c = begin; c < end; ++c) out[c] += x[c] * weight[c];
      }
      for (int c = begin; c < end && shape.bias; ++c) out[c] += shape.bias[c];
    }
    // From the last block to the first: the first may have the state that was read.
    for (int entry = (first + rows - 1) / size; entry >= first / size; --entry) {
      if (table[entry] == 0) continue;
      const int stop = std::min(rows, (entry + 1) * size - first);
      float* state = context_.cache->state(i.group, i.layer, table[entry]);
      for (int part = 0; part < kept; ++part) {
        const int at = stop - kept + part;
        for (int c = begin; c < end; ++c)
          state[part * channels + c] = at < 0 && !before ? 0.0f : input(at)[c];
      }
    }
  }
}

// Few rows are divided by the adapters' ranks, which every thread then needs all rows for; many
// rows are divided among the threads, or groups of these.
void Program::shrink(const Instruction& i, int index, Worker& worker) {
  const Adapters& adapters = context_.adapters;
  const std::vector<int32_t>& rows = adapters.rows(i.space);
  const int count = static_cast<int>(rows.size()), threads = team_->all();
  const int row_parts = std::clamp(count / kShrinkRows, 1, threads);
  const int thread = team_->number(index);
  const int rank_parts = threads / row_parts, rank_part = thread / row_parts;
  if (rank_part >= rank_parts) return;
  const size_t row_floats = shrink_row_floats(i.x.width);
  int first, end;
  share_of(thread % row_parts, row_parts, count, first, end);
  for (int at = first, some; at < end; at += some) {
    some = adapters.run(i.space, at, end);
    const Down& down = adapters.down(i.space, rows[at], i.product);
    int first_tile, end_tile;
    share_of(rank_part, rank_parts, (down.ranks + kDownRanks - 1) / kDownRanks, first_tile,
             end_tile);
    if (first_tile == end_tile) continue;
    const float* x[kShrinkRows];
    float* low[kShrinkRows];
    for (int r = 0; r < some; ++r) {
      float* from = context_.at(i.x, rows[at + r]);
      float* normed = worker.row + r * row_floats;
      if (i.norm.heads > 0)
        normalise(kernels_, i.norm, from, i.x.stride, 1, i.x.width, normed, row_floats);
      x[r] = i.norm.heads > 0 ? normed : from;
      low[r] = context_.at(i.out, rows[at + r]);
    }
    kernels_.shrink(down, x, low, some, first_tile, end_tile, adapters.scale(i.space, rows[at]));
  }
}

// Rows whose adapters have a matrix in place of the base's are multiplied with that, and what the
// base's made of them is overwritten.
void Program::whole_gemm(const Instruction& i, int index, Worker& worker) {
  const Adapters& adapters = context_.adapters;
  const std::vector<int32_t>& rows = adapters.rows(i.space);
  const int count = static_cast<int>(rows.size());
  const size_t row_floats = shrink_row_floats(i.x.width);
  for (int at = 0, some; at < count; at += some) {
    some = adapters.run(i.space, at, count);
    const AdapterWhole& whole = adapters.at(i.space, rows[at])->whole(i.product);
    if (!whole.matrix.data || adapters.scale(i.space, rows[at]) == 0.0f) continue;
    const Matrix& matrix = whole.matrix;
    int first, end;
    share_of(team_->number(index), team_->all(), num_panels(matrix), first, end);
    if (first == end) continue;
    const size_t bytes = kernels_.prepared_bytes(matrix.format, matrix.inputs);
    auto* prepared = reinterpret_cast<uint8_t*>(worker.row + row_floats);
    for (int r = 0; r < some; ++r) {
      float* x = context_.at(i.x, rows[at + r]);
      if (i.norm.heads > 0) {
        normalise(kernels_, i.norm, x, i.x.stride, 1, i.x.width, worker.row, row_floats);
        x = worker.row;
      }
      kernels_.prepare(matrix.format, x, i.x.stride, 1, matrix.inputs, prepared + r * bytes);
    }
    Epilogue epilogue;
    epilogue.out = context_.at(i.out);
    epilogue.out_stride = i.out.stride;
    epilogue.bias = whole.bias;
    epilogue.scale = i.factor;
    epilogue.cap = i.cap;
    epilogue.out_rows = rows.data() + at;
    kernels_.gemm(matrix, prepared, some, first, end, worker.kernel_scratch, epilogue,
                  kDefaultAhead);
  }
}

// A head's parts of the rows are neighbours, so that its matrix stays in the caches.
void Program::head_gemm(const Instruction& i, Shares& shares, int index, Worker& worker) {
  const int heads = static_cast<int>(i.pieces.size()), all = context_.step.rows(i.space);
  const int parts = (all + kHeadRows - 1) / kHeadRows;
  auto* prepared = reinterpret_cast<uint8_t*>(worker.row);
  const auto multiply = [&](int head, int first, int rows) {
    const Matrix& matrix = i.pieces[head].matrix;
    const float* x = context_.at(i.x, first) + head * (i.passed + matrix.inputs);
    float* out = context_.at(i.out, first);
    const int column = head * (i.passed + matrix.outputs);
    const Share mine = team_->share(num_panels(matrix));
    if (mine.count() == 0) return;
    for (int row = 0; row < rows && i.passed > 0 && mine.first == 0; ++row)
      std::memcpy(out + row * i.out.stride + column, x + row * i.x.stride,
                  i.passed * sizeof(float));
    kernels_.prepare(matrix.format, x + i.passed, i.x.stride, rows, matrix.inputs, prepared);
    Epilogue epilogue = context_.epilogue_of(i, i.pieces[head]);
    epilogue.out = out;
    epilogue.first_output = column + i.passed;
    context_.products.gemm(matrix, prepared, rows, mine.first, mine.end, worker.kernel_scratch,
                           epilogue);
  };
  shares.take(index, heads * parts, context_.epoch, [&](int begin, int end) {
    for (int part = begin; part < end; ++part) {
      const int first = part % parts * kHeadRows;
      multiply(part / parts, first, std::min(kHeadRows, all - first));
    }
  });
}

}  // namespace octavo
