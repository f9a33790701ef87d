// What each instruction does: its threads' shares of rows or of panels, and the kernels on them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/program.h"

namespace octavo {

namespace {

void share_of(int index, int threads, int count, int& first, int& end) {
  first = static_cast<int>(static_cast<int64_t>(count) * index / threads);
  end = static_cast<int>(static_cast<int64_t>(count) * (index + 1) / threads);
}

// How many rows before it is read a row is asked for, much of which another thread wrote last.
constexpr int kRowsAhead = 2;

void ask_for(const float* row, int width) {
  for (int column = 0; column < width; column += kAlign / 4) __builtin_prefetch(row + column, 0, 2);
}

}  // namespace

float* Program::at(const Ref& ref, int row) const {
  const int64_t column = row * ref.stride + ref.first;
  switch (ref.where) {
    case Ref::Where::Nothing: return nullptr;
    case Ref::Where::LogitsOut: return step_.logits_out + column;
    case Ref::Where::HiddenOut: return step_.hidden_out + column;
    case Ref::Where::Scratch: break;
  }
  const int space = static_cast<int>(ref.space);
  uint8_t* base = scratch_[space].data() + ref.offset * capacity_[space];
  return reinterpret_cast<float*>(base) + column;
}

bool Program::is_private(const Prepared& prepared) const {
  const int rows = rows_of(prepared.space);
  return team_->size() > 1 && prepared.space != Space::Pairs && rows <= kPrivateRows &&
         static_cast<int64_t>(rows) * prepared.inputs <= kPrivateFloats;
}

uint8_t* Program::prepared_at(const Prepared& prepared, const Worker& worker) const {
  const int space = static_cast<int>(prepared.space);
  if (!is_private(prepared))
    return prepared_[space].data() + prepared.offset * capacity_[space];
  int64_t before = prepared.offset;
  for (int other = 0; other < space; ++other) before += prepared_row_bytes_[other];
  return worker.prepared + before * kPrivateRows;
}

void Program::execute(const Instruction& i, Shares& shares, int index, Worker& worker) {
  switch (i.op) {
    case Op::Prepare: return prepare(i, index, worker);
    case Op::Gemm: return gemm(i, shares, index, worker);
    case Op::Attention: return attention(i, shares, index, worker);
    case Op::ExpertsIn: return experts_in(i, shares, index, worker);
    case Op::ExpertsOut: return experts_out(i, shares, index, worker);
    case Op::SortPairs:
      if (index == 0) sort_pairs(i);
      return;
    default: break;
  }
  int first, end;
  share_of(index, team_->size(), rows_of(i.space), first, end);
  if (first < end) rows(i, first, end);
}

void Program::rows(const Instruction& i, int first, int end) {
  const int count = end - first, width = i.x.width;
  float* x = at(i.x, first);
  float* out = at(i.out, first);
  switch (i.op) {
    case Op::RopeTables: return rope_tables(first, end);
    case Op::Embed: return embed(i, first, end);
    case Op::Select: return select(i, first, end);
    case Op::Route: return route(i, first, end);
    case Op::Norm: return normalise(i.norm, x, i.x.stride, count, width, out, i.out.stride);
    case Op::Scale: return kernels_.scale(x, i.x.stride, i.factor, count, width, out, i.out.stride);
    case Op::Add:
      return kernels_.add(x, at(i.y, first), i.x.stride, i.y.stride, count, width, out,
                          i.out.stride);
    case Op::Multiply:
      return kernels_.multiply(x, at(i.y, first), i.x.stride, i.y.stride, i.y.width == 1, count,
                               width, out, i.out.stride);
    case Op::Gate:
      return kernels_.gate(i.activation, x, at(i.y, first), i.x.stride, count, width, out,
                           i.out.stride);
    case Op::Activate:
    case Op::SoftCap:
      if (out != x) kernels_.scale(x, i.x.stride, 1.0f, count, width, out, i.out.stride);
      if (i.op == Op::SoftCap) return kernels_.soft_cap(out, i.out.stride, i.cap, count, width);
      return kernels_.activate(i.activation, out, i.out.stride, count, width);
    default: return;
  }
}

void Program::rope_tables(int first, int end) {
  for (size_t index = 0; index < ropes_.size(); ++index) {
    const Rope& rope = ropes_[index];
    const int half = rope.shape.dimensions / 2;
    for (int row = first; row < end; ++row) {
      float* cosines = tables_[index].data() + static_cast<size_t>(row) * rope.shape.dimensions;
      for (int pair = 0; pair < half; ++pair) {
        // The angle is rounded to fp32, as the models were trained; its cosine is not further off.
        const double angle =
            static_cast<float>(step_.positions[row]) * rope.frequencies[pair];
        cosines[pair] = static_cast<float>(std::cos(angle)) * rope.shape.magnitude;
        cosines[half + pair] = static_cast<float>(std::sin(angle)) * rope.shape.magnitude;
      }
    }
  }
}

void Program::embed(const Instruction& i, int first, int end) {
  const int32_t* ids = i.by_position ? step_.positions : step_.token_ids;
  const int width = i.out.width;
  for (int row = first; row < end; ++row) {
    float* out = at(i.out, row);
    const Piece* table = i.pieces.data();
    int32_t id = ids[row];
    // Pieces are runs of rows, one behind the other. Ids were checked when they came in; one that
    // is out of range all the same must not read beyond the table.
    while (table + 1 < i.pieces.data() + i.pieces.size() && id >= table->matrix.outputs)
      id -= (table++)->matrix.outputs;
    id = std::clamp(id, 0, table->matrix.outputs - 1);
    kernels_.unpack_row(table->matrix, id, out);
    if (i.factor != 1.0f) kernels_.scale(out, width, i.factor, 1, width, out, width);
  }
}

void Program::select(const Instruction& i, int first, int end) {
  const int space = static_cast<int>(i.space);
  const int32_t* rows =
      i.x.space == Space::Wanted ? places_[space].data() : step_.selected[space];
  for (int row = first; row < end; ++row)
    std::memcpy(at(i.out, row), at(i.x, rows[row]), i.x.width * sizeof(float));
}

void Program::normalise(const NormShape& norm, const float* x, size_t x_stride, int rows,
                        int width, float* out, size_t out_stride) const {
  const auto one = [&](const float* from, size_t from_stride, int count, int size, int head,
                       float* to, size_t to_stride) {
    const size_t weights = norm.weight_a_head ? static_cast<size_t>(head) * size : 0;
    if (norm.is_rms)
      kernels_.rms_norm(from, from_stride, count, size, norm.weight + weights, norm.eps,
                        norm.offset, to, to_stride);
    else
      kernels_.layer_norm(from, from_stride, count, size, norm.weight + weights,
                          norm.bias ? norm.bias + weights : nullptr, norm.eps, to, to_stride);
  };
  const int heads = norm.heads, size = width / heads;
  if (heads == 1) return one(x, x_stride, rows, width, 0, out, out_stride);
  for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    if (!norm.weight_a_head) {
      one(x, size, heads, size, 0, out, size);
      continue;
    }
    for (int head = 0; head < heads; ++head)
      one(x + head * size, size, 1, size, head, out + head * size, size);
  }
}

void Program::prepare(const Instruction& i, int index, Worker& worker) {
  const Prepared& p = i.prepared;
  const bool alone = is_private(p);
  const size_t bytes = kernels_.prepared_bytes(p.format, p.inputs);
  uint8_t* to = prepared_at(p, worker);
  int first = 0, end = rows_of(p.space);
  if (!alone) share_of(index, team_->size(), end, first, end);
  if (i.norm.heads == 0) {
    if (first < end)
      kernels_.prepare(p.format, at(i.x, first), i.x.stride, end - first, p.inputs,
                       to + first * bytes);
  } else {
    for (int row = first; row < end; ++row) {
      if (row + kRowsAhead < end) ask_for(at(i.x, row + kRowsAhead), i.x.width);
      normalise(i.norm, at(i.x, row), i.x.stride, 1, i.x.width, worker.row, i.x.width);
      kernels_.prepare(p.format, worker.row, i.x.width, 1, p.inputs, to + row * bytes);
    }
  }
  if (!alone) team_->meet();
}

Epilogue Program::epilogue_of(const Instruction& i, const Piece& piece) const {
  Epilogue e;
  e.out = at(i.out);
  e.out_stride = i.out.stride;
  e.first_output = piece.first_output;
  e.bias = piece.bias;
  e.residual = at(i.y);
  e.residual_stride = i.y.stride;
  e.scale = i.factor;
  e.cap = i.cap;
  e.activation = i.activation;
  e.gated = piece.gated;
  return e;
}

void Program::gemm(const Instruction& i, Shares& shares, int index, Worker& worker) {
  const uint8_t* prepared = prepared_at(i.prepared, worker);
  const int rows = rows_of(i.prepared.space);
  int panels = 0;
  for (const Piece& piece : i.pieces) panels += (piece.matrix.outputs + kPanel - 1) / kPanel;
  shares.take(index, panels, epoch_, [&](int first, int end) {
    for (const Piece& piece : i.pieces) {
      const int count = (piece.matrix.outputs + kPanel - 1) / kPanel;
      if (first < count && end > 0)
        kernels_.gemm(piece.matrix, prepared, rows, std::max(first, 0), std::min(end, count),
                      worker.kernel_scratch, epilogue_of(i, piece));
      first -= count;
      end -= count;
    }
  });
}

}  // namespace octavo
