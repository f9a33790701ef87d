// Draws tokens natively: what octavo/runner/sampler.py does for slots without rules, to the token.
//
// The same scores (double: logit over temperature), cuts (filters.py) and noise (noise.py). Only
// logarithms and exponentials may differ from numpy's, in the last of 53 bits; so another token
// is drawn only where two are that near to a tie, or a sum that near to top_p's edge.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// How one row is drawn. Greedy if temperature is 0; a cut is off at min_p 0, top_k 0, top_p 1.
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
  double share;  // of probability, the likeliest's being 1
  float logit;
  int32_t token;
};

// What one thread works in.
struct SamplerScratch {
  std::vector<uint8_t> draw;
  std::vector<int32_t> tokens;
  std::vector<float> values;
  std::vector<double> shares;
  std::vector<Candidate> candidates;
};

// The token, or -1 if any logit is not finite. Rows do not touch each other: any thread may draw
// any of them.
int32_t draw_token(const KernelTable& kernels, int vocabulary, const Draw& draw,
                   SamplerScratch& scratch);

}  // namespace octavo
