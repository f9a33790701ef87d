// Mixtures of experts: which rows go to whom, and the products of those experts that are used.
//
// A row's results are added up in the order of its experts' numbers, by the one thread that has
// those columns.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "runtime/program.h"

namespace octavo {

namespace {

// Softmax in place; what is not a number stays so.
void soften(float* x, int count) {
  const float most = *std::max_element(x, x + count);
  float total = 0.0f;
  for (int index = 0; index < count; ++index) total += x[index] = std::exp(x[index] - most);
  for (int index = 0; index < count; ++index) x[index] /= total;
}

}  // namespace

void Program::route(const Instruction& i, int first, int end) {
  const RouteShape& shape = i.route;
  std::vector<float> judged(shape.experts);
  std::vector<int32_t> order(shape.experts);
  for (int row = first; row < end; ++row) {
    std::copy_n(at(i.x, row), shape.experts, judged.begin());
    if (shape.scores == RouteShape::Scores::Softmax) soften(judged.data(), shape.experts);
    if (shape.scores == RouteShape::Scores::Sigmoid)
      for (float& score : judged) score = 1.0f / (1.0f + std::exp(-score));
    std::iota(order.begin(), order.end(), 0);
    // NaN would break the order; it is put last, and spoils the row's weights all the same.
    const auto key = [&](int expert) {
      return std::isnan(judged[expert]) ? -HUGE_VALF : judged[expert];
    };
    std::partial_sort(order.begin(), order.begin() + shape.top_k, order.end(), [&](int a, int b) {
      return key(a) != key(b) ? key(a) > key(b) : a < b;
    });
    float* weights = at(i.out, row);
    int32_t* chosen = reinterpret_cast<int32_t*>(at(i.chosen, row));
    for (int place = 0; place < shape.top_k; ++place) {
      chosen[place] = order[place];
      weights[place] = judged[order[place]];
    }
    if (shape.scores == RouteShape::Scores::Chosen) soften(weights, shape.top_k);
    float total = 0.0f;
    for (int place = 0; place < shape.top_k; ++place) total += weights[place];
    for (int place = 0; place < shape.top_k; ++place) {
      if (shape.normalise) weights[place] /= total;
      weights[place] *= shape.scale;
    }
  }
}

void Program::sort_pairs(const Instruction& i) {
  const int rows = rows_of(i.space), top_k = i.route.top_k;
  pair_starts_.assign(i.route.experts + 1, 0);
  const auto chosen = [&](int row) { return reinterpret_cast<const int32_t*>(at(i.chosen, row)); };
  for (int row = 0; row < rows; ++row)
    for (int place = 0; place < top_k; ++place) ++pair_starts_[chosen(row)[place] + 1];
  std::partial_sum(pair_starts_.begin(), pair_starts_.end(), pair_starts_.begin());
  std::vector<int32_t> next(pair_starts_.begin(), pair_starts_.end() - 1);
  for (int row = 0; row < rows; ++row)
    for (int place = 0; place < top_k; ++place) {
      const int32_t pair = next[chosen(row)[place]]++;
      pair_rows_[pair] = row;
      pair_weights_[pair] = at(i.x, row)[place];
    }
}

void Program::experts_in(const Instruction& i, Shares& shares, int index, Worker& worker) {
  const int pairs = rows_of(i.space) * top_k_, threads = team_->size();
  const size_t bytes = kernels_.prepared_bytes(i.prepared.format, i.prepared.inputs);
  uint8_t* prepared = prepared_at(i.prepared, worker);
  const int stop = static_cast<int>(static_cast<int64_t>(pairs) * (index + 1) / threads);
  for (int pair = static_cast<int>(static_cast<int64_t>(pairs) * index / threads); pair < stop;
       ++pair)
    kernels_.prepare(i.prepared.format, at(i.x, pair_rows_[pair]), i.x.stride, 1,
                     i.prepared.inputs, prepared + pair * bytes);
  team_->meet();
  const int panels = (i.pieces[0].matrix.outputs + kPanel - 1) / kPanel;
  shares.take(index, panels, epoch_, [&](int first, int end) {
    for (size_t expert = 0; expert < i.pieces.size(); ++expert) {
      const int start = pair_starts_[expert], rows = pair_starts_[expert + 1] - start;
      if (rows == 0) continue;
      Epilogue epilogue = epilogue_of(i, i.pieces[expert]);
      epilogue.out = at(i.out, start);
      kernels_.gemm(i.pieces[expert].matrix, prepared + start * bytes, rows, first, end,
                    worker.kernel_scratch, epilogue);
    }
  });
}

void Program::experts_out(const Instruction& i, Shares& shares, int index, Worker& worker) {
  const int pairs = rows_of(i.space) * top_k_, threads = team_->size();
  const size_t bytes = kernels_.prepared_bytes(i.prepared.format, i.prepared.inputs);
  uint8_t* prepared = prepared_at(i.prepared, worker);
  const int start = static_cast<int>(static_cast<int64_t>(pairs) * index / threads);
  const int stop = static_cast<int>(static_cast<int64_t>(pairs) * (index + 1) / threads);
  if (start < stop)
    kernels_.prepare(i.prepared.format, at(i.x, start), i.x.stride, stop - start,
                     i.prepared.inputs, prepared + start * bytes);
  team_->meet();
  const int outputs = i.pieces[0].matrix.outputs, panels = (outputs + kPanel - 1) / kPanel;
  shares.take(index, panels, epoch_, [&](int first, int end) {
    const int column = first * kPanel, columns = std::min(end * kPanel, outputs) - column;
    for (int row = 0; row < rows_of(i.space); ++row)
      std::memset(at(i.out, row) + column, 0, columns * sizeof(float));
    for (size_t expert = 0; expert < i.pieces.size(); ++expert) {
      const int from = pair_starts_[expert], rows = pair_starts_[expert + 1] - from;
      if (rows == 0) continue;
      Epilogue epilogue = epilogue_of(i, i.pieces[expert]);
      epilogue.out_rows = pair_rows_.data() + from;
      epilogue.row_weights = pair_weights_.data() + from;
      kernels_.gemm(i.pieces[expert].matrix, prepared + from * bytes, rows, first, end,
                    worker.kernel_scratch, epilogue);
    }
  });
}

}  // namespace octavo
