// Draws a token from a row of logits, exactly as the reference (octavo/backends/torch) does.
//
// The same scores (double: logit over temperature), filters and noise. Only
// logarithms and exponentials may differ from numpy's, in the last of 53 bits; so another token is
// drawn only if two are that close to a tie, or a sum is that close to top_p.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/table.h"
#include "sampling/slot.h"

namespace octavo {

// The parameters of one row. Greedy if temperature is 0. Filters are off at min_p 0, top_k 0 and
// top_p 1, without a chain; has_filters says whether any of them is on.
struct Draw {
  const float* logits;
  // The only tokens that may be drawn, ascending; null: all may.
  const std::vector<int32_t>* candidates;
  double temperature;
  double min_p;
  double top_p;
  int64_t top_k;
  int64_t seed;
  int64_t position;  // how many tokens were generated before
  bool has_filters;
  const std::vector<Stage>& chain;  // instead of temperature and filters; empty: none
  double mu;                        // of mirostat, if that is the chain's last stage
  int vocabulary;
};

struct Candidate {
  double share;  // of probability, relative to the likeliest token
  float logit;
  int32_t token;
};

// A token whose place in an order is its distance, ties by token id.
struct Distant {
  double share;
  double distance;
  int32_t token;
};

// The working memory of one thread.
struct DrawScratch {
  std::vector<uint8_t> draw;
  std::vector<int32_t> tokens;
  std::vector<float> values;
  std::vector<double> shares;
  std::vector<Candidate> candidates;
  std::vector<float> gathered;
  std::vector<Distant> distant;  // of a chain, as what follows
  std::vector<float> left;
  std::vector<float> sorted;
  double surprise = 0.0;  // of the token that was drawn, if the chain has mirostat
};

// The random number of XTC: the noise, between 0 and 1, of a token that no vocabulary has.
double coin_of(int64_t seed, int64_t position);

// The token, or -1 if any logit is not finite. With candidates, of which there must be at least
// one, only their logits are read. Rows are independent: any thread may draw any of them.
int32_t draw_token(const KernelTable& kernels, int vocabulary, const Draw& draw,
                   DrawScratch& scratch);

}  // namespace octavo
