// Choosing tokens: the largest logit, and the largest logit over the temperature plus noise.
//
// Noise is a pure function of two keys and the token id (octavo/backends/torch/sampling/noise.py
// defines it): 64 bits h, u = (h >> 12 + ½) / 2^52, noise = -log(-log u). Two logarithms for each
// token of a vocabulary would be most of a step. But -log u ≥ 1 - u, so that no noise is above
// -log(1 - u): a block of tokens whose largest logit is known needs h of each, compared to one
// number, and the logarithms only of the few that could be ahead of the best so far.
#pragma once

#include "kernels/attention_vector.inl"

extern "C" double log(double);  // the C library's, never inline: not one tier's code in another
extern "C" double exp(double);

namespace octavo {
namespace OCTAVO_TIER {
namespace {
namespace sample {

using attend::Floats;
using attend::Ints;
using attend::kLanes;
using attend::kWordLanes;
using attend::Doubles;
using attend::fused;
using attend::WordMask;

typedef uint64_t Words __attribute__((vector_size(kLanes * 4)));

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr uint64_t kFirst = 0xBF58476D1CE4E5B9u;
constexpr uint64_t kSecond = 0x94D049BB133111EBu;
constexpr double kMostNoise = 37.0;  // -log(2^-53) is 36.74

// ---- largest ----

// The largest of logits[0, size); lanes of `bad` are set where any is not finite.
inline float largest(const float* logits, int size, Ints& bad) {
  // Two chains, so that one does not wait for the other.
  Floats best = attend::splat(-__builtin_inff()), other = best;
  const Ints infinite = attend::splat_bits(0x7F800000u);
  int i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const Floats x = attend::load<Floats>(logits + i);
    const Floats y = attend::load<Floats>(logits + i + kLanes);
    best = attend::larger(x, best);
    other = attend::larger(y, other);
    bad |= ((attend::bits_of(x) & INT32_MAX) >= infinite) |
           ((attend::bits_of(y) & INT32_MAX) >= infinite);
  }
  float value = attend::largest_of(attend::larger(best, other));
  for (; i < size; ++i) {
    value = logits[i] > value ? logits[i] : value;
    if ((attend::float_bits(logits[i]) & 0x7FFFFFFFu) >= 0x7F800000u) bad[0] = -1;
  }
  return value;
}

inline bool none(Ints bad) {
  int32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= bad[lane];
  return any == 0;
}

inline int first_equal(const float* logits, int size, float value) {
  for (int i = 0; i < size; ++i)
    if (logits[i] == value) return i;
  return -1;
}

constexpr int kChunk = 2048;  // tokens between two comparisons of maxima

int32_t arg_max(const float* logits, int size) {
  float best = -__builtin_inff();
  int at = 0;
  Ints bad{};
  for (int begin = 0; begin < size; begin += kChunk) {
    const int count = size - begin < kChunk ? size - begin : kChunk;
    const float most = largest(logits + begin, count, bad);
    if (most > best) {
      best = most;
      at = begin;
    }
  }
  if (!none(bad)) return -1;
  return at + first_equal(logits + at, size - at, best);
}

// ---- noise ----

// h of consecutive tokens, the first of which gives `state` = key + token · G.
template <typename Word>
inline Word random_bits(Word state, uint64_t two) {
  Word x = (state ^ (state >> 30)) * kFirst + two;
  x = (x ^ (x >> 27)) * kSecond;
  return x ^ (x >> 31);
}

struct Race {
  const float* logits;
  double temperature;
  uint64_t one, two;
  double best;
  int32_t leader;
};

// Draws a token's noise, unless the token clearly cannot win.
inline void enter(Race& race, int32_t token) {
  const uint64_t bits = random_bits(race.one + static_cast<uint64_t>(token) * kGolden, race.two);
  const double score = static_cast<double>(race.logits[token]) / race.temperature;
  // 1 - u lies in [2^-zeros-1, 2^-zeros): its logarithm is not below -(zeros + 1) · log 2.
  const uint64_t rest = ~bits >> 12;
  const int zeros = rest ? __builtin_clzll(rest) - 12 : 52;
  if (score + (zeros + 1) * 0.6931471806 < race.best) return;
  const double u = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  const double sum = score + -log(-log(u));
  if (sum > race.best || (sum == race.best && token < race.leader)) {
    race.best = sum;
    race.leader = token;
  }
}

// Tokens [begin, end), none of whose logits is above `most`.
inline void enter_block(Race& race, int begin, int end, float most) {
  const double gap = race.best - static_cast<double>(most) / race.temperature;
  if (gap > kMostNoise) return;
  // A token that may win has 1 - u ≤ exp(-gap), and a little more for rounding.
  const double limit = gap > 0.0 ? exp(-gap) * 0x1p64 * 1.000001 + 0x1p13 : 0x1p64;
  const uint64_t threshold = limit >= 0x1.fffffep63 ? ~uint64_t{0} : static_cast<uint64_t>(limit);
  Words state;
  for (int lane = 0; lane < kWordLanes; ++lane)
    state[lane] = race.one + static_cast<uint64_t>(begin + lane) * kGolden;
  for (int token = begin; token < end; token += kWordLanes) {
    const WordMask may_win = ~random_bits(state, race.two) <= threshold;
    state += kWordLanes * kGolden;
    uint32_t lanes = attend::set_lanes(may_win);
    for (; lanes; lanes &= lanes - 1) {
      const int candidate = token + __builtin_ctz(lanes);
      if (candidate < end) enter(race, candidate);
    }
  }
}

constexpr int kBlock = kLogitBlock;  // tokens that share a maximum

size_t draw_scratch(int size) { return (size + kBlock - 1) / kBlock * sizeof(float); }

float block_maxima(const float* logits, int size, float* maxima) {
  float most = -__builtin_inff();
  Ints bad{};
  for (int begin = 0; begin < size; begin += kBlock, ++maxima) {
    *maxima = largest(logits + begin, size - begin < kBlock ? size - begin : kBlock, bad);
    most = *maxima > most ? *maxima : most;
  }
  return none(bad) ? most : __builtin_nanf("");
}

int32_t count_above(const float* logits, int size, float value) {
  Ints counts{};
  const Floats edge = attend::splat(value);
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) counts -= attend::load<Floats>(logits + i) > edge;
  int32_t count = 0;
  for (int lane = 0; lane < kLanes; ++lane) count += counts[lane];
  for (; i < size; ++i) count += logits[i] > value;
  return count;
}

int32_t draw(const float* logits, int size, double temperature, uint64_t one, uint64_t two,
             uint8_t* scratch) {
  float* maxima = reinterpret_cast<float*>(scratch);
  const int blocks = (size + kBlock - 1) / kBlock;
  int first = 0;
  Ints bad{};
  for (int b = 0; b < blocks; ++b) {
    const int begin = b * kBlock, count = size - begin < kBlock ? size - begin : kBlock;
    maxima[b] = largest(logits + begin, count, bad);
    if (maxima[b] > maxima[first]) first = b;
  }
  if (!none(bad)) return -1;
  Race race{logits, temperature, one, two, -__builtin_inf(), 0};
  // The block with the largest logit first: most of the others then cannot win.
  const auto run = [&](int b) {
    const int begin = b * kBlock, end = begin + kBlock < size ? begin + kBlock : size;
    enter_block(race, begin, end, maxima[b]);
  };
  enter(race, first * kBlock + first_equal(logits + first * kBlock, kBlock, maxima[first]));
  run(first);
  for (int b = 0; b < blocks; ++b)
    if (b != first) run(b);
  return race.leader;
}

int32_t draw_among(const float* logits, const int32_t* tokens, int count, double temperature,
                   uint64_t one, uint64_t two) {
  Race race{logits, temperature, one, two, -__builtin_inf(), tokens[0]};
  for (int i = 0; i < count; ++i) enter(race, tokens[i]);
  return race.leader;
}

// ---- probabilities ----

typedef float HalfFloats __attribute__((vector_size(kLanes * 2)));

// exp(x) for x ≤ 0, to about a unit in the last place; 0 below -708, where normal numbers end.
inline Doubles exponential(Doubles x) {
  const Doubles shift = 0x1.8p52 - Doubles{};  // adding it rounds to a whole number
  const Doubles shifted = fused(x, 1.4426950408889634 - Doubles{}, shift);
  const Doubles whole = shifted - shift;
  // ln 2 in two parts, the first of few enough bits for its product to be exact.
  Doubles r = fused(whole, -0x1.62e42fee00000p-1 - Doubles{}, x);
  r = fused(whole, -0x1.a39ef35793c76p-33 - Doubles{}, r);
  // Taylor's series: what is left out, r^14 / 14!, is below 2^-57 for |r| ≤ ln 2 / 2.
  constexpr double kInverse[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                 1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                 1.0 / 120,        1.0 / 24,        1.0 / 6,        0.5, 1.0, 1.0};
  Doubles p{};
  for (double coefficient : kInverse) p = fused(p, r, coefficient - Doubles{});
  const WordMask exponent = ((WordMask)shifted - (WordMask)shift + 1023) << 52;
  return x < -708.0 ? Doubles{} : p * (Doubles)exponent;
}

double shares(const float* logits, int size, double temperature, double most, double* out) {
  constexpr int kSums = 8, kVectors = kSums / kWordLanes;
  Doubles sums[kVectors]{};
  const auto add = [&](const float* some, double* to) {
    for (int v = 0; v < kVectors; ++v) {
      const HalfFloats x = attend::load<HalfFloats>(some + v * kWordLanes);
      const Doubles behind = __builtin_convertvector(x, Doubles) / temperature - most;
      const Doubles share = exponential(behind);
      sums[v] += share;
      attend::store(to + v * kWordLanes, share);
    }
  };
  int i = 0;
  for (; i + kSums <= size; i += kSums) add(logits + i, out + i);
  if (i < size) {
    float rest[kSums];
    double last[kSums];
    for (int lane = 0; lane < kSums; ++lane)
      rest[lane] = i + lane < size ? logits[i + lane] : -__builtin_inff();
    add(rest, last);
    for (int lane = 0; i + lane < size; ++lane) out[i + lane] = last[lane];
  }
  double sum = 0.0;
  for (int lane = 0; lane < kSums; ++lane) sum += sums[lane / kWordLanes][lane % kWordLanes];
  return sum;
}

double total(const float* logits, int size, double most) {
  constexpr int kSums = 16, kVectors = kSums / kWordLanes;
  Doubles sums[kVectors]{};
  const auto add = [&](const float* some) {
    for (int v = 0; v < kVectors; ++v) {
      const HalfFloats x = attend::load<HalfFloats>(some + v * kWordLanes);
      sums[v] += exponential(__builtin_convertvector(x, Doubles) - most);
    }
  };
  int i = 0;
  for (; i + kSums <= size; i += kSums) add(logits + i);
  if (i < size) {
    float rest[kSums];
    for (int lane = 0; lane < kSums; ++lane)
      rest[lane] = i + lane < size ? logits[i + lane] : -__builtin_inff();
    add(rest);
  }
  double sum = 0.0;
  for (int lane = 0; lane < kSums; ++lane) sum += sums[lane / kWordLanes][lane % kWordLanes];
  return sum;
}

}  // namespace sample

void add_sampling(KernelTable& table) {
  table.arg_max = sample::arg_max;
  table.draw_scratch = sample::draw_scratch;
  table.draw = sample::draw;
  table.draw_among = sample::draw_among;
  table.shares = sample::shares;
  table.block_maxima = sample::block_maxima;
  table.total = sample::total;
  table.count_above = sample::count_above;
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
