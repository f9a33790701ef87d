// Draws tokens natively: what octavo/runner/sampler.py does for slots without rules, to the token.
#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace octavo {

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr uint64_t kApart = 0x6A09E667F3BCC909u;
// As in filters.py: for top-p tokens are put into bins by score, and only the bin in which the
// sum is reached is sorted.
constexpr int kBins = 4096;
constexpr double kFarBehind = 40.0;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The logit of the top_k-th likeliest of those that are `floor` or more, if there are so many.
float edge_of(const float* logits, int size, float floor, int64_t top_k, std::vector<float>& kept) {
  kept.clear();
  for (int i = 0; i < size; ++i)
    if (logits[i] >= floor) kept.push_back(logits[i]);
  if (static_cast<int64_t>(kept.size()) <= top_k) return floor;
  std::nth_element(kept.begin(), kept.begin() + (top_k - 1), kept.end(), std::greater<>());
  return kept[top_k - 1];
}

// A logit such that about `wanted` to some times as many are above it, to look only at those: the
// wanted-th largest of the largest of groups, which as many logits reach at least.
float lower_bound_of(const float* logits, int size, int64_t wanted, std::vector<float>& maxima) {
  constexpr int kGroup = 32;
  maxima.clear();
  for (int begin = 0; begin < size; begin += kGroup) {
    float most = logits[begin];
    for (int i = begin + 1; i < std::min(size, begin + kGroup); ++i) most = std::max(most, logits[i]);
    maxima.push_back(most);
  }
  if (wanted > static_cast<int64_t>(maxima.size())) return -INFINITY;
  std::nth_element(maxima.begin(), maxima.begin() + (wanted - 1), maxima.end(), std::greater<>());
  return maxima[wanted - 1];
}

// The tokens that min-p and top-k leave, in order of ids.
void keep_likely(int size, const Draw& draw, double most, SamplerScratch& scratch) {
  const float* logits = draw.logits;
  const double least = draw.min_p > 0.0 ? most + std::log(draw.min_p) : -INFINITY;
  float floor = -INFINITY;
  if (draw.top_k > 0 && draw.top_k < size) {
    // What min-p cuts away does not move top-k's edge, unless fewer than k are left.
    floor = lower_bound_of(logits, size, draw.top_k, scratch.values);
    floor = edge_of(logits, size, floor, draw.top_k, scratch.values);
  }
  scratch.tokens.clear();
  for (int i = 0; i < size; ++i)
    if (logits[i] >= floor && logits[i] / draw.temperature >= least) scratch.tokens.push_back(i);
}

// Of scratch.tokens the likeliest, each of which has less than top_p of probability before it.
void keep_nucleus(const Draw& draw, double most, SamplerScratch& scratch) {
  std::vector<int32_t>& tokens = scratch.tokens;
  const size_t count = tokens.size();
  scratch.behind.resize(count);
  scratch.shares.resize(count);
  scratch.bins.resize(count);
  double last_behind = 0.0;
  for (size_t i = 0; i < count; ++i) {
    scratch.behind[i] = most - draw.logits[tokens[i]] / draw.temperature;
    scratch.shares[i] = std::exp(-scratch.behind[i]);
    last_behind = std::max(last_behind, scratch.behind[i]);
  }
  double width = std::min(last_behind, kFarBehind) / (kBins - 1);
  if (width == 0.0) width = 1.0;
  std::vector<double> reached(kBins, 0.0);
  for (size_t i = 0; i < count; ++i) {
    scratch.bins[i] = static_cast<int32_t>(std::min(scratch.behind[i] / width, kBins - 1.0));
    reached[scratch.bins[i]] += scratch.shares[i];
  }
  std::partial_sum(reached.begin(), reached.end(), reached.begin());
  const double wanted = draw.top_p * reached.back();
  const auto found = std::lower_bound(reached.begin(), reached.end(), wanted);
  const int last = std::min<int>(static_cast<int>(found - reached.begin()), kBins - 1);
  std::vector<size_t> there;
  for (size_t i = 0; i < count; ++i)
    if (scratch.bins[i] == last) there.push_back(i);
  std::stable_sort(there.begin(), there.end(), [&](size_t one, size_t other) {
    return scratch.behind[one] < scratch.behind[other];
  });
  // Sums as numpy's: of the bin alone, and what was before added to each.
  const double before = last ? reached[last - 1] : 0.0;
  double sum = 0.0;
  size_t taken = 0;
  while (taken < there.size()) {
    sum += scratch.shares[there[taken++]];
    if (before + sum >= wanted) break;
  }
  for (size_t i = taken; i < there.size(); ++i) scratch.bins[there[i]] = kBins;  // behind all
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i)
    if (scratch.bins[i] <= last) tokens[kept++] = tokens[i];
  tokens.resize(kept);
}

}  // namespace

int32_t draw_token(const KernelTable& kernels, int vocabulary, const Draw& draw,
                   SamplerScratch& scratch) {
  if (draw.temperature == 0.0) return kernels.arg_max(draw.logits, vocabulary);
  const uint64_t seed = static_cast<uint64_t>(draw.seed);
  const uint64_t one = mix(mix(seed + kGolden) + static_cast<uint64_t>(draw.position) * kGolden);
  const uint64_t two = mix(one ^ kApart);
  if (draw.min_p <= 0.0 && draw.top_k <= 0 && draw.top_p >= 1.0) {
    scratch.draw.resize(kernels.draw_scratch(vocabulary));
    return kernels.draw(draw.logits, vocabulary, draw.temperature, one, two, scratch.draw.data());
  }
  const int32_t likeliest = kernels.arg_max(draw.logits, vocabulary);
  if (likeliest < 0) return -1;
  const double most = draw.logits[likeliest] / draw.temperature;
  keep_likely(vocabulary, draw, most, scratch);
  if (draw.top_p < 1.0) keep_nucleus(draw, most, scratch);
  return kernels.draw_among(draw.logits, scratch.tokens.data(),
                            static_cast<int>(scratch.tokens.size()), draw.temperature, one, two);
}

}  // namespace octavo
