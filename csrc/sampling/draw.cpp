// Draws a token from a row of logits.
#include "sampling/draw.h"

#include "sampling/chain.h"
#include "sampling/nucleus.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace octavo {

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr uint64_t kApart = 0x6A09E667F3BCC909u;
constexpr uint64_t kFirst = 0xBF58476D1CE4E5B9u;
constexpr uint64_t kSecond = 0x94D049BB133111EBu;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * kFirst;
  x = (x ^ (x >> 27)) * kSecond;
  return x ^ (x >> 31);
}

// The top_k-th largest of the logits that are `floor` or more, if there are so many.
float edge_of(const float* logits, int size, float floor, int64_t top_k, std::vector<float>& kept) {
  kept.clear();
  for (int i = 0; i < size; ++i)
    if (logits[i] >= floor) kept.push_back(logits[i]);
  if (static_cast<int64_t>(kept.size()) <= top_k) return floor;
  std::nth_element(kept.begin(), kept.begin() + (top_k - 1), kept.end(), std::greater<>());
  return kept[top_k - 1];
}

// A bound that at least `wanted` logits reach, and not many times more, so that only those are
// searched: the wanted-th largest of the maxima of groups.
float lower_bound_of(const float* logits, int size, int64_t wanted, std::vector<float>& maxima) {
  constexpr int kGroup = 32;
  maxima.clear();
  for (int begin = 0; begin < size; begin += kGroup) {
    float most = logits[begin];
    for (int i = begin + 1; i < std::min(size, begin + kGroup); ++i)
      most = std::max(most, logits[i]);
    maxima.push_back(most);
  }
  if (wanted > static_cast<int64_t>(maxima.size())) return -INFINITY;
  std::nth_element(maxima.begin(), maxima.begin() + (wanted - 1), maxima.end(), std::greater<>());
  return maxima[wanted - 1];
}

// Keeps the tokens that pass min-p and top-k.
void keep_likely(int size, const Draw& draw, double most, std::vector<float>& values,
                 std::vector<int32_t>& tokens) {
  const float* logits = draw.logits;
  const double least = draw.min_p > 0.0 ? most + std::log(draw.min_p) : -INFINITY;
  float floor = -INFINITY;
  if (draw.top_k > 0 && draw.top_k < size) {
    // Tokens that min-p removes do not change the bound of top-k, unless fewer than k are left.
    floor = lower_bound_of(logits, size, draw.top_k, values);
    floor = edge_of(logits, size, floor, draw.top_k, values);
  }
  tokens.clear();
  for (int i = 0; i < size; ++i)
    if (logits[i] >= floor && logits[i] / draw.temperature >= least) tokens.push_back(i);
}

// Keeps the likeliest tokens that have top_p together, of all or of those in scratch.tokens.
void keep_nucleus(const KernelTable& kernels, int size, const Draw& draw, double most, bool of_all,
                  DrawScratch& scratch) {
  std::vector<int32_t>& tokens = scratch.tokens;
  std::vector<Candidate>& candidates = scratch.candidates;
  candidates.clear();
  double total = 0.0;
  if (of_all) {
    scratch.shares.resize(size);
    total = kernels.shares(draw.logits, size, draw.temperature, most, scratch.shares.data());
    // Tokens below this have less than 1 - top_p together, so the nucleus needs none of them.
    const double least = std::max(0.0, 1.0 - draw.top_p) * total / size * (1.0 - 1e-6);
    for (int i = 0; i < size; ++i)
      if (scratch.shares[i] >= least) candidates.push_back({scratch.shares[i], draw.logits[i], i});
  } else {
    for (const int32_t token : tokens) {
      const double share = std::exp(draw.logits[token] / draw.temperature - most);
      candidates.push_back({share, draw.logits[token], token});
      total += share;
    }
  }
  const auto likelier = [](const Candidate& one, const Candidate& other) {
    return one.logit != other.logit ? one.logit > other.logit : one.token < other.token;
  };
  const size_t kept = nucleus(candidates, draw.top_p * total, likelier);
  tokens.clear();
  for (size_t i = 0; i < kept; ++i) tokens.push_back(candidates[i].token);
}

struct Keys {
  uint64_t one, two;
};

Keys keys_of(int64_t seed, int64_t position) {
  const uint64_t one = mix(mix(static_cast<uint64_t>(seed) + kGolden) +
                           static_cast<uint64_t>(position) * kGolden);
  return {one, mix(one ^ kApart)};
}

// Puts the tokens that pass the filters into scratch.tokens, and returns the temperature by which
// they are drawn. Returns a negative number if any logit is not finite.
double filter(const KernelTable& kernels, int size, const Draw& draw, DrawScratch& scratch) {
  const int32_t likeliest = kernels.arg_max(draw.logits, size);
  if (likeliest < 0) return -1.0;
  if (!draw.chain.empty()) return run_chain(kernels, size, draw, likeliest, scratch);
  const double most = draw.logits[likeliest] / draw.temperature;
  const bool of_all = draw.min_p <= 0.0 && draw.top_k <= 0;
  if (!of_all) keep_likely(size, draw, most, scratch.values, scratch.tokens);
  if (draw.top_p < 1.0) keep_nucleus(kernels, size, draw, most, of_all, scratch);
  return draw.temperature;
}

// Draws among the tokens that filters have left.
int32_t draw_left(const KernelTable& kernels, const Draw& draw, double temperature, uint64_t one,
                  uint64_t two, DrawScratch& scratch) {
  const int32_t token =
      kernels.draw_among(draw.logits, scratch.tokens.data(),
                         static_cast<int>(scratch.tokens.size()), temperature, one, two);
  if (!draw.chain.empty() && draw.chain.back().kind == Sampling::Mirostat)
    scratch.surprise = surprise_of(kernels, temperature, token, scratch);
  return token;
}

// Draws among few tokens: what concerns all of them runs over their logits, gathered.
int32_t draw_candidate(const KernelTable& kernels, const Draw& draw, DrawScratch& scratch) {
  const std::vector<int32_t>& ids = *draw.candidates;
  const int count = static_cast<int>(ids.size());
  scratch.gathered.clear();
  for (const int32_t id : ids) scratch.gathered.push_back(draw.logits[id]);
  const float* gathered = scratch.gathered.data();
  const int32_t likeliest = kernels.arg_max(gathered, count);
  if (likeliest < 0) return -1;
  if (draw.temperature == 0.0) return ids[likeliest];
  const auto [one, two] = keys_of(draw.seed, draw.position);
  if (!draw.has_filters)
    return kernels.draw_among(draw.logits, ids.data(), count, draw.temperature, one, two);
  Draw among = draw;
  among.logits = gathered;
  const double temperature = filter(kernels, count, among, scratch);
  for (int32_t& token : scratch.tokens) token = ids[token];
  return draw_left(kernels, draw, temperature, one, two, scratch);
}

}  // namespace

double coin_of(int64_t seed, int64_t position) {
  constexpr uint64_t kCoin = uint64_t{1} << 32;
  const auto [one, two] = keys_of(seed, position);
  uint64_t x = one + kCoin * kGolden;
  x = (x ^ (x >> 30)) * kFirst + two;
  x = (x ^ (x >> 27)) * kSecond;
  return (static_cast<double>((x ^ (x >> 31)) >> 12) + 0.5) * 0x1p-52;
}

int32_t draw_token(const KernelTable& kernels, int vocabulary, const Draw& draw,
                   DrawScratch& scratch) {
  if (draw.candidates) return draw_candidate(kernels, draw, scratch);
  if (draw.temperature == 0.0) return kernels.arg_max(draw.logits, vocabulary);
  const auto [one, two] = keys_of(draw.seed, draw.position);
  if (!draw.has_filters) {
    scratch.draw.resize(kernels.draw_scratch(vocabulary));
    return kernels.draw(draw.logits, vocabulary, draw.temperature, one, two, scratch.draw.data());
  }
  const double temperature = filter(kernels, vocabulary, draw, scratch);
  if (temperature < 0.0) return -1;
  return draw_left(kernels, draw, temperature, one, two, scratch);
}

}  // namespace octavo
