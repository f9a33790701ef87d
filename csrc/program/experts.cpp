// Mixtures of experts.
#include "program/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

namespace octavo {

namespace {

// Softmax in place; NaN stays NaN.
void softmax(float* x, int count) {
  const float most = *std::max_element(x, x + count);
  float total = 0.0f;
  for (int index = 0; index < count; ++index) total += x[index] = std::exp(x[index] - most);
  for (int index = 0; index < count; ++index) x[index] /= total;
}

// Leaves the experts of all but the best groups without a chance.
void leave_out_groups(const RouteShape& shape, std::vector<float>& choice) {
  const int size = shape.experts / shape.groups;
  std::vector<std::pair<float, int>> quality;  // with the group; negative: the best come first
  std::vector<float> members;
  for (int group = 0; group < shape.groups; ++group) {
    members.assign(choice.begin() + group * size, choice.begin() + (group + 1) * size);
    std::partial_sort(members.begin(), members.begin() + shape.group_best, members.end(),
                      std::greater<>());
    const float total =
        std::accumulate(members.begin(), members.begin() + shape.group_best, 0.0f);
    quality.emplace_back(-total, group);
  }
  std::sort(quality.begin(), quality.end());
  for (int place = shape.top_groups; place < shape.groups; ++place)
    std::fill_n(choice.begin() + quality[place].second * size, size, -HUGE_VALF);
}

}  // namespace

void Experts::add(const Instruction& i) {
  if (top_k_ != 0 && top_k_ != i.route.top_k)
    throw std::invalid_argument("all layers must choose the same number of experts a token");
  top_k_ = i.route.top_k;
}

void Experts::reserve() {
  const size_t pairs = context_.step.rows(Space::Pairs);
  if (pair_rows_.size() >= pairs) return;
  pair_rows_.resize(pairs);
  pair_weights_.resize(pairs);
}

void Experts::route(const Instruction& i, int first, int end) const {
  const RouteShape& shape = i.route;
  std::vector<float> scores(shape.experts), choice;
  std::vector<int32_t> order(shape.experts);
  for (int row = first; row < end; ++row) {
    std::copy_n(context_.at(i.x, row), shape.experts, scores.begin());
    if (shape.scores == RouteShape::Scores::Softmax) softmax(scores.data(), shape.experts);
    if (shape.scores == RouteShape::Scores::Sigmoid)
      for (float& score : scores) score = 1.0f / (1.0f + std::exp(-score));
    std::iota(order.begin(), order.end(), 0);
    choice = scores;
    if (shape.bias)
      for (int expert = 0; expert < shape.experts; ++expert) choice[expert] += shape.bias[expert];
    // NaN would break the order, so it goes last; it makes the row's weights NaN all the same.
    for (float& score : choice)
      if (std::isnan(score)) score = -HUGE_VALF;
    if (shape.groups > 1) leave_out_groups(shape, choice);
    const auto key = [&](int expert) { return choice[expert]; };
    std::partial_sort(order.begin(), order.begin() + shape.top_k, order.end(), [&](int a, int b) {
      return key(a) != key(b) ? key(a) > key(b) : a < b;
    });
    float* weights = context_.at(i.out, row);
    int32_t* chosen = reinterpret_cast<int32_t*>(context_.at(i.chosen, row));
    for (int place = 0; place < shape.top_k; ++place) {
      chosen[place] = order[place];
      weights[place] = scores[order[place]];
    }
    if (shape.scores == RouteShape::Scores::Chosen) softmax(weights, shape.top_k);
    // Sigmoids may all be zero.
    const float least = shape.scores == RouteShape::Scores::Sigmoid ? 1e-20f : 0.0f;
    float total = 0.0f;
    for (int place = 0; place < shape.top_k; ++place) total += weights[place];
    for (int place = 0; place < shape.top_k; ++place) {
      if (shape.normalise) weights[place] /= total + least;
      weights[place] *= shape.scale;
    }
  }
}

void Experts::sort_pairs(const Instruction& i) {
  const int rows = context_.step.rows(i.space), top_k = i.route.top_k;
  pair_starts_.assign(i.route.experts + 1, 0);
  const auto chosen = [&](int row) {
    return reinterpret_cast<const int32_t*>(context_.at(i.chosen, row));
  };
  for (int row = 0; row < rows; ++row)
    for (int place = 0; place < top_k; ++place) ++pair_starts_[chosen(row)[place] + 1];
  std::partial_sum(pair_starts_.begin(), pair_starts_.end(), pair_starts_.begin());
  std::vector<int32_t> next(pair_starts_.begin(), pair_starts_.end() - 1);
  for (int row = 0; row < rows; ++row)
    for (int place = 0; place < top_k; ++place) {
      const int32_t pair = next[chosen(row)[place]]++;
      pair_rows_[pair] = row;
      pair_weights_[pair] = context_.at(i.x, row)[place];
    }
}

void Experts::multiply_in(const Instruction& i, Shares& shares, int worker_index,
                          Worker& worker) const {
  const int pairs = context_.step.rows(i.space) * top_k_, threads = context_.team.all();
  const size_t bytes = context_.kernels.prepared_bytes(i.prepared.format, i.prepared.inputs);
  uint8_t* prepared = context_.prepared_at(i.prepared, worker);
  int start, stop;
  share_of(context_.team.number(worker_index), threads, pairs, start, stop);
  for (int pair = start; pair < stop; ++pair)
    context_.kernels.prepare(i.prepared.format, context_.at(i.x, pair_rows_[pair]), i.x.stride, 1,
                             i.prepared.inputs, prepared + pair * bytes);
  context_.team.barrier(worker_index);
  const Share mine = context_.team.share(num_panels(i.pieces[0].matrix));
  shares.take(worker_index, mine.count(), context_.epoch, [&](int first, int end) {
    first += mine.first;
    end += mine.first;
    for (size_t expert = 0; expert < i.pieces.size(); ++expert) {
      const int start = pair_starts_[expert], rows = pair_starts_[expert + 1] - start;
      if (rows == 0) continue;
      Epilogue epilogue = context_.epilogue_of(i, i.pieces[expert]);
      epilogue.out = context_.at(i.out, start);
      context_.products.gemm(i.pieces[expert].matrix, prepared + start * bytes, rows, first, end,
                             worker.kernel_scratch, epilogue);
    }
  });
}

void Experts::multiply_out(const Instruction& i, Shares& shares, int worker_index,
                           Worker& worker) const {
  const int pairs = context_.step.rows(i.space) * top_k_, threads = context_.team.all();
  const size_t bytes = context_.kernels.prepared_bytes(i.prepared.format, i.prepared.inputs);
  uint8_t* prepared = context_.prepared_at(i.prepared, worker);
  int start, stop;
  share_of(context_.team.number(worker_index), threads, pairs, start, stop);
  if (start < stop)
    context_.kernels.prepare(i.prepared.format, context_.at(i.x, start), i.x.stride, stop - start,
                             i.prepared.inputs, prepared + start * bytes);
  context_.team.barrier(worker_index);
  const int outputs = i.pieces[0].matrix.outputs;
  const Share mine = context_.team.share(num_panels(i.pieces[0].matrix));
  shares.take(worker_index, mine.count(), context_.epoch, [&](int first, int end) {
    first += mine.first;
    end += mine.first;
    const int column = first * kPanel, columns = std::min(end * kPanel, outputs) - column;
    for (int row = 0; row < context_.step.rows(i.space); ++row)
      std::memset(context_.at(i.out, row) + column, 0, columns * sizeof(float));
    for (size_t expert = 0; expert < i.pieces.size(); ++expert) {
      const int from = pair_starts_[expert], rows = pair_starts_[expert + 1] - from;
      if (rows == 0) continue;
      Epilogue epilogue = context_.epilogue_of(i, i.pieces[expert]);
      epilogue.out_rows = pair_rows_.data() + from;
      epilogue.row_weights = pair_weights_.data() + from;
      context_.products.gemm(i.pieces[expert].matrix, prepared + from * bytes, rows, first, end,
                             worker.kernel_scratch, epilogue);
    }
  });
}

}  // namespace octavo
