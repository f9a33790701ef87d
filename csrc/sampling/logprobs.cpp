// Log-probabilities of rows of logits.
#include "sampling/logprobs.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>

namespace octavo {

namespace {

// Finds the tokens of the `count` largest logits, in order. `count` blocks have a maximum that is
// at least the count-th largest maximum, so no smaller logit is needed.
void find_likeliest(const float* logits, int vocabulary, int count, LogprobsScratch& scratch,
                    int32_t* ids) {
  if (count == 0) return;
  float floor = -INFINITY;
  if (count <= static_cast<int>(scratch.maxima.size())) {
    scratch.ordered = scratch.maxima;
    const auto last = scratch.ordered.begin() + (count - 1);
    std::nth_element(scratch.ordered.begin(), last, scratch.ordered.end(), std::greater<>());
    floor = *last;
  }
  std::vector<int32_t>& tokens = scratch.tokens;
  tokens.clear();
  for (size_t block = 0; block < scratch.maxima.size(); ++block) {
    if (scratch.maxima[block] < floor) continue;
    const int begin = static_cast<int>(block) * kLogitBlock;
    for (int token = begin; token < std::min(begin + kLogitBlock, vocabulary); ++token)
      if (logits[token] >= floor) tokens.push_back(token);
  }
  const auto likelier = [&](int32_t one, int32_t other) {
    return logits[one] != logits[other] ? logits[one] > logits[other] : one < other;
  };
  const auto end = tokens.begin() + count;
  if (end != tokens.end()) std::nth_element(tokens.begin(), end, tokens.end(), likelier);
  std::sort(tokens.begin(), end, likelier);
  std::copy(tokens.begin(), end, ids);
}

}  // namespace

int64_t describe_row(const KernelTable& kernels, const float* logits, int vocabulary, int32_t token,
                    int count, const int32_t* given, int32_t* ids, float* logprobs,
                    LogprobsScratch& scratch) {
  scratch.maxima.resize((vocabulary + kLogitBlock - 1) / kLogitBlock);
  const double most = kernels.block_maxima(logits, vocabulary, scratch.maxima.data());
  if (std::isnan(most)) return 0;
  const double log_total = std::log(kernels.total(logits, vocabulary, most));
  ids[0] = token;
  if (given) std::copy_n(given, count, ids + 1);
  else find_likeliest(logits, vocabulary, count, scratch, ids + 1);
  for (int place = 0; place <= count; ++place) {
    const double logprob = logits[ids[place]] - most - log_total;
    logprobs[place] = static_cast<float>(std::max(logprob, -double{FLT_MAX}));
  }
  return 1 + int64_t{kernels.count_above(logits, vocabulary, logits[token])};
}

}  // namespace octavo
