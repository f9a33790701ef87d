// Draws exactly the tokens that octavo/runner/sampler.py draws for slots without rules.
//
// The same scores (double: logit over temperature), cuts (filters.py) and noise (noise.py). Only
// logarithms and exponentials may differ from numpy's, in the last of 53 bits; so another token is
// drawn only if two are that close to a tie, or a sum is that close to top_p.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// The parameters of one row. Greedy if temperature is 0; a cut is off at min_p 0, top_k 0, top_p 1.
struct Draw {
  const float* logits;
  double temperature;
  double min_p;
  double top_p;
  int64_t top_k;
  int64_t seed;
  int64_t position;  // how many tokens were generated before
};

struct Candidate {
  double share;  // of probability, relative to the likeliest token
  float logit;
  int32_t token;
};

// The working memory of one thread.
struct SamplerScratch {
  std::vector<uint8_t> draw;
  std::vector<int32_t> tokens;
  std::vector<float> values;
  std::vector<double> shares;
  std::vector<Candidate> candidates;
};

// The token, or -1 if any logit is not finite. Rows are independent: any thread may draw any
// of them.
int32_t draw_token(const KernelTable& kernels, int vocabulary, const Draw& draw,
                   SamplerScratch& scratch);

}  // namespace octavo
