// Finds the first tokens of an order that have a sum of probability together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace octavo {

// Moves the first tokens to the front, as many as have `wanted` of share together, and at least
// one. Returns how many. Halves the searched range again and again.
template <typename Item, typename Before>
size_t nucleus(std::vector<Item>& tokens, double wanted, const Before& before_other) {
  constexpr size_t kFew = 64;  // tokens: these are sorted
  size_t begin = 0, end = tokens.size();
  double before = 0.0;
  while (end - begin > kFew) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(tokens.begin() + begin, tokens.begin() + middle, tokens.begin() + end,
                     before_other);
    double sum = before;
    for (size_t i = begin; i < middle; ++i) sum += tokens[i].share;
    if (sum >= wanted) {
      end = middle;
    } else {
      before = sum;
      begin = middle;
    }
  }
  std::sort(tokens.begin() + begin, tokens.begin() + end, before_other);
  while (begin < end) {
    before += tokens[begin++].share;
    if (before >= wanted) break;
  }
  return begin;
}

}  // namespace octavo
