// Runs a chain of samplers.
#include "sampling/chain.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "sampling/nucleus.h"
#include "sampling/rules.h"

namespace octavo {

namespace {

constexpr double kGreedyBelow = 1e-5;
constexpr double kLeastTemperature = 0.01;
constexpr double kBit = 0.69314718055994530942;  // the natural logarithm of 2
constexpr size_t kRanks = 100;                   // from which mirostat estimates the exponent
constexpr double kLeastExponent = 1e-12;

// The tokens that are left: their ids, their logits in the same order, and the temperature.
class Left {
 public:
  Left(const KernelTable& kernels, int size, const Draw& draw, DrawScratch& scratch)
      : kernels_(kernels), scratch_(scratch), ids_(scratch.tokens), logits_(scratch.left) {
    ids_.clear();
    logits_.clear();
    for (int32_t id = 0; id < size; ++id) {
      if (draw.logits[id] == kForbidden) continue;
      ids_.push_back(id);
      logits_.push_back(draw.logits[id]);
    }
  }

  double temperature() const { return temperature_; }

  void run(const Stage& stage, const Draw& draw) {
    switch (stage.kind) {
      case Sampling::TopK: return keep_top(static_cast<size_t>(stage.value));
      case Sampling::MinP: return min_p(stage);
      case Sampling::TopP: return top_p(stage);
      case Sampling::TypicalP: return typical_p(stage);
      case Sampling::TopNSigma: return top_n_sigma(stage);
      case Sampling::Xtc: return xtc(stage, coin_of(draw.seed, draw.position));
      case Sampling::Temperature: return set_temperature(stage);
      case Sampling::Mirostat:
        return stage.value == 1.0 ? keep_estimated(draw) : keep_expected(draw.mu);
    }
  }

 private:
  size_t count() const { return ids_.size(); }
  float most() const { return *std::max_element(logits_.begin(), logits_.end()); }

  // How far a token's score is below the best.
  double behind(size_t i, double best) const { return best - logits_[i] / temperature_; }

  template <typename Kept>
  void keep_if(const Kept& kept) {
    size_t to = 0;
    for (size_t i = 0; i < count(); ++i) {
      if (!kept(i)) continue;
      ids_[to] = ids_[i];
      logits_[to++] = logits_[i];
    }
    ids_.resize(to);
    logits_.resize(to);
  }

  // Leaves the k likeliest, with all that tie with the last of them.
  void keep_top(size_t k) {
    if (count() <= k) return;
    std::vector<float>& sorted = scratch_.sorted;
    sorted.assign(logits_.begin(), logits_.end());
    std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
    const float edge = sorted[k - 1];
    keep_if([&](size_t i) { return logits_[i] >= edge; });
  }

  // Fills scratch_.shares, and returns their sum.
  double fill_shares(double best) {
    scratch_.shares.resize(count());
    return kernels_.shares(logits_.data(), static_cast<int>(count()), temperature_, best,
                           scratch_.shares.data());
  }

  // Leaves the tokens with the least distances that have a share of probability together.
  template <typename Distance>
  void keep_nearest(const Stage& stage, double total, const Distance& distance) {
    std::vector<Distant>& tokens = scratch_.distant;
    tokens.clear();
    for (size_t i = 0; i < count(); ++i)
      tokens.push_back({scratch_.shares[i], distance(i), static_cast<int32_t>(i)});
    const auto nearer = [](const Distant& one, const Distant& other) {
      return one.distance != other.distance ? one.distance < other.distance
                                            : one.token < other.token;
    };
    size_t kept = nucleus(tokens, stage.value * total, nearer);
    const size_t least = std::min(tokens.size(), static_cast<size_t>(stage.min_keep));
    if (kept < least) {
      kept = least;
      std::nth_element(tokens.begin(), tokens.begin() + (kept - 1), tokens.end(), nearer);
    }
    keep_distant(kept);
  }

  // Leaves the first of scratch_.distant, in the order of their ids, as the other stages do.
  void keep_distant(size_t kept) {
    std::vector<Distant>& tokens = scratch_.distant;
    std::sort(tokens.begin(), tokens.begin() + kept,
              [](const Distant& one, const Distant& other) { return one.token < other.token; });
    for (size_t i = 0; i < kept; ++i) {
      ids_[i] = ids_[tokens[i].token];
      logits_[i] = logits_[tokens[i].token];
    }
    ids_.resize(kept);
    logits_.resize(kept);
  }

  void min_p(const Stage& stage) {
    const double least = most() / temperature_ + std::log(stage.value);
    const auto is_likely = [&](float logit) { return logit / temperature_ >= least; };
    const auto kept = std::count_if(logits_.begin(), logits_.end(), is_likely);
    if (kept < stage.min_keep) return keep_first(static_cast<size_t>(stage.min_keep));
    keep_if([&](size_t i) { return is_likely(logits_[i]); });
  }

  // Leaves the likeliest tokens; ties go by token id.
  void keep_first(size_t least) {
    const size_t kept = std::min(count(), least);
    std::vector<float>& sorted = scratch_.sorted;
    sorted.assign(logits_.begin(), logits_.end());
    std::nth_element(sorted.begin(), sorted.begin() + (kept - 1), sorted.end(), std::greater<>());
    const float edge = sorted[kept - 1];
    size_t ties = kept;
    for (const float logit : logits_) ties -= logit > edge;
    keep_if([&](size_t i) {
      if (logits_[i] != edge) return logits_[i] > edge;
      if (ties == 0) return false;
      --ties;
      return true;
    });
  }

  void top_p(const Stage& stage) {
    const double best = most() / temperature_;
    const double total = fill_shares(best);
    keep_nearest(stage, total, [&](size_t i) { return behind(i, best); });
  }

  // The mean distance below the best, which is the entropy less the logarithm of the total.
  double mean_behind(double best, double total) const {
    double sum = 0.0;
    for (size_t i = 0; i < count(); ++i) sum += scratch_.shares[i] * behind(i, best);
    return sum / total;
  }

  void typical_p(const Stage& stage) {
    const double best = most() / temperature_;
    const double total = fill_shares(best), mean = mean_behind(best, total);
    keep_nearest(stage, total, [&](size_t i) { return std::fabs(behind(i, best) - mean); });
  }

  void top_n_sigma(const Stage& stage) {
    double sum = 0.0, squares = 0.0;
    for (const float logit : logits_) sum += logit;
    const double mean = sum / static_cast<double>(count());
    for (const float logit : logits_) squares += (logit - mean) * (logit - mean);
    const double edge =
        most() - stage.value * std::sqrt(squares / static_cast<double>(count()));
    keep_if([&](size_t i) { return logits_[i] >= edge; });
  }

  void xtc(const Stage& stage, double coin) {
    if (coin >= stage.value) return;
    const double least = stage.threshold * fill_shares(most() / temperature_);
    const auto is_likely = [&](size_t i) { return scratch_.shares[i] >= least; };
    size_t likely = 0, spared = 0;  // spared: the least likely of them, of equal ones the last
    for (size_t i = 0; i < count(); ++i) {
      if (!is_likely(i)) continue;
      if (likely++ == 0 || logits_[i] <= logits_[spared]) spared = i;
    }
    if (likely < 2 || static_cast<int64_t>(count() - likely + 1) < stage.min_keep) return;
    keep_if([&](size_t i) { return i == spared || !is_likely(i); });
  }

  void set_temperature(const Stage& stage) {
    const double wanted = stage.range > 0.0 ? by_entropy(stage) : stage.value;
    if (wanted >= kGreedyBelow) {
      temperature_ = std::max(wanted, kLeastTemperature);
      return;
    }
    const auto best = std::max_element(logits_.begin(), logits_.end()) - logits_.begin();
    keep_if([&](size_t i) { return i == static_cast<size_t>(best); });
  }

  double by_entropy(const Stage& stage) {
    if (count() < 2) return stage.value;
    const double low = std::max(0.0, stage.value - stage.range), high = stage.value + stage.range;
    const double best = most() / temperature_, total = fill_shares(best);
    const double entropy = std::log(total) + mean_behind(best, total);
    const double share = std::max(0.0, entropy / std::log(static_cast<double>(count())));
    return low + (high - low) * std::pow(share, stage.exponent);
  }

  // Mirostat 2: the tokens whose surprise is at most mu.
  void keep_expected(double mu) {
    const double best = most() / temperature_;
    const double edge = mu * kBit - std::log(fill_shares(best));
    const auto is_expected = [&](size_t i) { return behind(i, best) <= edge; };
    for (size_t i = 0; i < count(); ++i)
      if (is_expected(i)) return keep_if(is_expected);
    keep_first(1);
  }

  // Mirostat 1: the likeliest tokens, so many as the law that their ranks follow suggests.
  void keep_estimated(const Draw& draw) {
    if (count() < 2) return;
    const double best = most() / temperature_;
    std::vector<Distant>& tokens = scratch_.distant;
    tokens.clear();
    for (size_t i = 0; i < count(); ++i)
      tokens.push_back({0.0, behind(i, best), static_cast<int32_t>(i)});
    const auto nearer = [](const Distant& one, const Distant& other) {
      return one.distance != other.distance ? one.distance < other.distance
                                            : one.token < other.token;
    };
    const size_t ranks = std::min(count(), kRanks);
    std::partial_sort(tokens.begin(), tokens.begin() + ranks, tokens.end(), nearer);
    double above = 0.0, below = 0.0;
    for (size_t rank = 0; rank + 1 < ranks; ++rank) {
      const double step = std::log(static_cast<double>(rank + 2) / static_cast<double>(rank + 1));
      above += step * (tokens[rank + 1].distance - tokens[rank].distance);
      below += step * step;
    }
    const double wanted = log_count(std::max(above / below, kLeastExponent), draw);
    if (wanted >= std::log(static_cast<double>(count()))) return;
    const size_t kept = wanted > 0.0 ? static_cast<size_t>(std::exp(wanted)) : 1;
    if (kept > ranks)
      std::nth_element(tokens.begin(), tokens.begin() + (kept - 1), tokens.end(), nearer);
    keep_distant(kept);
  }

  // The logarithm of how many tokens mirostat 1 leaves.
  static double log_count(double exponent, const Draw& draw) {
    const double excess = exponent - 1.0, spread = std::log(static_cast<double>(draw.vocabulary));
    const double quotient = excess != 0.0 ? -excess / std::expm1(-excess * spread) : 1.0 / spread;
    return (draw.mu * kBit + std::log(quotient)) / exponent;
  }

  const KernelTable& kernels_;
  DrawScratch& scratch_;
  std::vector<int32_t>& ids_;
  std::vector<float>& logits_;
  double temperature_ = 1.0;
};

}  // namespace

double run_chain(const KernelTable& kernels, int size, const Draw& draw, int32_t likeliest,
                 DrawScratch& scratch) {
  if (draw.logits[likeliest] == kForbidden) {
    scratch.tokens.assign(1, likeliest);
    scratch.left.clear();
    return 1.0;
  }
  Left left(kernels, size, draw, scratch);
  for (const Stage& stage : draw.chain) left.run(stage, draw);
  return left.temperature();
}

double surprise_of(const KernelTable& kernels, double temperature, int32_t token,
                   DrawScratch& scratch) {
  const std::vector<float>& logits = scratch.left;
  if (logits.empty()) return 0.0;
  const auto found = std::find(scratch.tokens.begin(), scratch.tokens.end(), token);
  const double best = *std::max_element(logits.begin(), logits.end()) / temperature;
  scratch.shares.resize(logits.size());
  const double total = kernels.shares(logits.data(), static_cast<int>(logits.size()), temperature,
                                      best, scratch.shares.data());
  const double behind = best - logits[found - scratch.tokens.begin()] / temperature;
  return (behind + std::log(total)) / kBit;
}

}  // namespace octavo
