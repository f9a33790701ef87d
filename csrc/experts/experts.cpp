// Mixtures of experts.
#include "experts/experts.h"

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

// Bytes of an expert that are copied to another rank between two steps, in less than a millisecond.
constexpr size_t kCopyBytes = size_t{1} << 20;

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

void Experts::add(Instruction& i) {
  if (i.op == Op::Route) {
    if (top_k_ != 0 && top_k_ != i.route.top_k)
      throw std::invalid_argument("all layers must choose the same number of experts a token");
    top_k_ = i.route.top_k;
  }
  if (!i.are_whole) return;
  Ranks* ranks = context_.team.ranks();
  if (i.op == Op::SortPairs)
    mixtures_.push_back(
        {ExpertBalance(i.route.experts, ranks ? ranks->ranks() : 1, i.redundant), {}, nullptr});
  i.mixture = static_cast<int32_t>(mixtures_.size()) - 1;
  Mixture& mixture = mixtures_.at(i.mixture);
  if (i.op == Op::ExpertsIn) mixture.in = i.pieces;
  if (i.op == Op::ExpertsOut && i.redundant > 0 && ranks)
    mixture.copies =
        std::make_unique<ExpertCopies>(*ranks, mixture.balance, mixture.in, i.pieces);
}

void Experts::reserve() {
  const size_t pairs = context_.step.rows(Space::Pairs);
  if (pair_rows_.size() >= pairs) return;
  pair_rows_.resize(pairs);
  pair_weights_.resize(pairs);
  if (!mixtures_.empty()) row_pairs_.resize(pairs);
}

size_t Experts::bytes() const {
  return (pair_rows_.size() + row_pairs_.size()) * sizeof(int32_t) +
         pair_weights_.size() * sizeof(float);
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
  find_parts(i);
}

void Experts::find_parts(const Instruction& i) {
  if (!i.are_whole) {
    parts_.clear();
    for (int32_t expert = 0; expert < i.route.experts; ++expert) {
      const int32_t first = pair_starts_[expert], rows = pair_starts_[expert + 1] - first;
      if (rows > 0) parts_.push_back({expert, first, rows, -1});
    }
    return;
  }
  Mixture& mixture = mixtures_[i.mixture];
  parts_ = mixture.balance.parts(pair_starts_, rank());
  if (mixture.copies) mixture.balance.count(pair_starts_);
  // Pairs lie by expert, so those of a row are found in the order of its experts.
  const int rows = context_.step.rows(i.space);
  std::vector<int32_t> found(rows, 0);
  for (int32_t pair = 0; pair < rows * top_k_; ++pair) {
    const int32_t row = pair_rows_[pair];
    row_pairs_[row * top_k_ + found[row]++] = pair;
  }
}

// A rank has some panels of each expert, or all of some experts.
Share Experts::share_of_panels(const Instruction& i) const {
  const int panels = num_panels(i.pieces[0].matrix);
  return i.are_whole ? Share{0, panels} : context_.team.share(panels);
}

Matrix Experts::matrix_of(const Instruction& i, const ExpertPart& part, int product) const {
  if (part.slot < 0) return i.pieces[part.expert].matrix;
  return mixtures_[i.mixture].copies->matrix(product, part.slot);
}

void Experts::multiply_in(const Instruction& i, Shares& shares, int worker_index,
                          Worker& worker) const {
  const int pairs = pair_starts_.back(), threads = context_.team.all();
  const size_t bytes = context_.kernels.prepared_bytes(i.prepared.format, i.prepared.inputs);
  uint8_t* prepared = context_.prepared_at(i.prepared, worker);
  int start, stop;
  share_of(context_.team.number(worker_index), threads, pairs, start, stop);
  for (int pair = start; pair < stop; ++pair)
    context_.kernels.prepare(i.prepared.format, context_.at(i.x, pair_rows_[pair]), i.x.stride, 1,
                             i.prepared.inputs, prepared + pair * bytes);
  context_.team.barrier(worker_index);
  const Share mine = share_of_panels(i);
  shares.take(worker_index, mine.count(), context_.epoch, [&](int first, int end) {
    first += mine.first;
    end += mine.first;
    for (const ExpertPart& part : parts_) {
      Epilogue epilogue = context_.epilogue_of(i, i.pieces[part.expert]);
      epilogue.out = context_.at(i.out, part.first);
      context_.products.gemm(matrix_of(i, part, 0), prepared + part.first * bytes, part.rows,
                             first, end, worker.kernel_scratch, epilogue);
    }
  });
}

void Experts::multiply_out(const Instruction& i, Shares& shares, int worker_index,
                           Worker& worker) const {
  const int pairs = pair_starts_.back(), threads = context_.team.all();
  const size_t bytes = context_.kernels.prepared_bytes(i.prepared.format, i.prepared.inputs);
  uint8_t* prepared = context_.prepared_at(i.prepared, worker);
  int start, stop;
  share_of(context_.team.number(worker_index), threads, pairs, start, stop);
  if (start < stop)
    context_.kernels.prepare(i.prepared.format, context_.at(i.x, start), i.x.stride, stop - start,
                             i.prepared.inputs, prepared + start * bytes);
  context_.team.barrier(worker_index);
  const int outputs = i.pieces[0].matrix.outputs;
  const Share mine = share_of_panels(i);
  shares.take(worker_index, mine.count(), context_.epoch, [&](int first, int end) {
    first += mine.first;
    end += mine.first;
    const int column = first * kPanel, columns = std::min(end * kPanel, outputs) - column;
    const auto clear = [&](int begin, int rows) {
      for (int row = begin; row < begin + rows; ++row)
        std::memset(context_.at(i.out, row) + column, 0, columns * sizeof(float));
    };
    if (!i.are_whole) clear(0, context_.step.rows(i.space));
    for (const ExpertPart& part : parts_) {
      Epilogue epilogue = context_.epilogue_of(i, i.pieces[part.expert]);
      epilogue.row_weights = pair_weights_.data() + part.first;
      if (i.are_whole) {
        clear(part.first, part.rows);
        epilogue.out = context_.at(i.out, part.first);
      } else {
        epilogue.out_rows = pair_rows_.data() + part.first;
      }
      context_.products.gemm(matrix_of(i, part, 1), prepared + part.first * bytes, part.rows,
                             first, end, worker.kernel_scratch, epilogue);
    }
  });
}

// Sums begin with zero and the first product, as those of `multiply_out` in rows do.
void Experts::add_up(const Instruction& i, int first, int end) const {
  const int width = i.out.width;
  for (int row = first; row < end; ++row) {
    const int32_t* pairs = row_pairs_.data() + static_cast<size_t>(row) * top_k_;
    float* out = context_.at(i.out, row);
    std::memcpy(out, context_.at(i.x, pairs[0]), width * sizeof(float));
    for (int place = 1; place < top_k_; ++place)
      context_.kernels.add(out, context_.at(i.x, pairs[place]), width, width, 1, width, out, width);
  }
}

void Experts::end_step() {
  if (copy_after_ == 0) return;
  ++steps_;
  if (copying_.empty()) {
    if (steps_ % copy_after_ != 0) return;
    for (size_t mixture = 0; mixture < mixtures_.size(); ++mixture)
      if (const auto chosen = mixtures_[mixture].balance.choose())
        copying_.push_back({mixture, *chosen});
    return;
  }
  Copying& now = copying_.front();
  Mixture& mixture = mixtures_[now.mixture];
  mixture.balance.put(now.copy.slot, -1);
  if (mixture.balance.owner(now.copy.expert) == rank())
    mixture.copies->write(now.copy, now.bytes, kCopyBytes);
  now.bytes += kCopyBytes;
  if (now.bytes < mixture.copies->expert_bytes()) return;
  mixture.balance.put(now.copy.slot, now.copy.expert);
  copying_.pop_front();
}

std::vector<Experts::Redundant> Experts::redundant() const {
  std::vector<Redundant> found;
  for (size_t mixture = 0; mixture < mixtures_.size(); ++mixture) {
    const ExpertBalance& balance = mixtures_[mixture].balance;
    for (int slot = 0; slot < balance.slots(); ++slot)
      if (balance.expert_in(slot) >= 0)
        found.push_back({static_cast<int32_t>(mixture), balance.expert_in(slot),
                         balance.holder(slot)});
  }
  return found;
}

}  // namespace octavo
