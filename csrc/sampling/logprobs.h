// Computes the log-probability and the rank of one token of a row of logits, and the likeliest
// tokens with their log-probabilities, as the reference (octavo/backends/torch) does.
//
// Sums run in double precision in one order (KernelTable::total), so that a row's bits do not
// depend on its place; from numpy's they may differ in the last bit of a float.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// The working memory of one thread.
struct LogprobsScratch {
  std::vector<float> maxima;
  std::vector<float> ordered;
  std::vector<int32_t> tokens;
};

// ids and logprobs have 1 + count entries: first `token`, then `count` tokens: those of `given`, in
// their order, or if it is null the likeliest, best first; of those that tie the lower id goes
// first. count may not be above the vocabulary. Returns the token's rank (one more than there are
// likelier ones), or 0 if any logit is not finite.
int64_t describe_row(const KernelTable& kernels, const float* logits, int vocabulary, int32_t token,
                     int count, const int32_t* given, int32_t* ids, float* logprobs,
                     LogprobsScratch& scratch);

}  // namespace octavo
