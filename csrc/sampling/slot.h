// One slot: how its sequence's tokens are drawn, and what has been drawn so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

namespace octavo {

// SlotSampling::logprobs besides a number of likely tokens.
constexpr int32_t kAllLogprobs = -1;
constexpr int32_t kNoLogprobs = -2;

enum class Sampling { TopK, MinP, TopP, TypicalP, TopNSigma, Xtc, Temperature, Mirostat };

// One sampler of a chain; its fields are those of octavo/backends/step.py's Stage.
struct Stage {
  Sampling kind;
  double value;
  int64_t min_keep;
  double threshold;
  double range;
  double exponent;
};

// The penalties for tokens that would continue a repetition; a multiplier of 0: none.
struct Dry {
  double multiplier = 0.0;
  double base = 1.0;
  int32_t allowed = 1;
  int32_t window = 0;
  std::vector<int32_t> breakers;
};

// The parameters of the stage Mirostat, and its state behind the known tokens.
struct Mirostat {
  bool is_on = false;
  double tau = 0.0;
  double eta = 0.0;
  double mu = 0.0;
};

// The parameters of octavo/backends/step.py's SlotSampling. All ids are in the vocabulary.
struct SlotSampling {
  std::vector<int32_t> tokens;  // known at opening: the prompt, then the output
  int32_t num_prompt = 0;
  double temperature = 0.0;
  double min_p = 0.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  std::vector<Stage> chain;  // instead of temperature and filters
  int64_t seed = 0;
  bool has_allowed = false;
  std::vector<int32_t> allowed;  // ascending
  std::vector<std::vector<int32_t>> bad_words;
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_ids;
  std::vector<int32_t> bias_ids;
  std::vector<float> bias;
  float repetition = 1.0f;
  float presence = 0.0f;
  float frequency = 0.0f;
  int64_t penalty_window = 0;  // the last tokens, whose occurrences count; 0: all
  Dry dry;
  Mirostat mirostat;
  int32_t logprobs = kNoLogprobs;
  std::vector<int32_t> logprob_ids;  // whose log-probabilities are wanted; empty: the likeliest
  bool has_processors = false;

  bool has_penalties() const { return repetition != 1.0f || presence != 0.0f || frequency != 0.0f; }
  bool has_filters() const {
    return min_p > 0.0 || top_k > 0 || top_p < 1.0 || !chain.empty();
  }
};

// How often each token occurred. Memory grows with the distinct tokens, not with the vocabulary.
class TokenCounts {
 public:
  void clear();
  void add(int32_t token, float occurrences);
  void remove(int32_t token);
  size_t size() const { return ids_.size(); }
  int32_t id(size_t place) const { return ids_[place]; }
  float count(size_t place) const { return counts_[place]; }

 private:
  std::unordered_map<int32_t, int32_t> places_;
  std::vector<int32_t> ids_;
  std::vector<float> counts_;
};

// The last tokens of a sequence, whose counts follow them.
class CountedWindow {
 public:
  // Puts a token at the end; the oldest of more than `size` leaves, with its counts.
  void add(int32_t token, float occurrences, int64_t size, TokenCounts& counts);

 private:
  std::deque<std::pair<int32_t, float>> tokens_;
  std::unordered_map<int32_t, int64_t> seen_;  // how often each token is in the window
};

class Slot {
 public:
  void open(SlotSampling sampling);
  void close();
  // Appends a token to the sequence.
  void append(int32_t token);
  // Moves mirostat's bound by the surprise of a token that was drawn.
  void follow_surprise(double surprise);

  bool is_open() const { return is_open_; }
  const SlotSampling& sampling() const { return sampling_; }
  int32_t last() const { return last_; }
  int64_t num_output() const { return num_output_; }
  // The output's tokens, if bad words or processors look at them; else nothing.
  const std::vector<int32_t>& output() const { return output_; }
  const TokenCounts& seen() const { return seen_; }
  // With DRY its window's tokens at least, of prompt and output; else nothing.
  const std::vector<int32_t>& history() const { return history_; }
  bool has_filters() const { return has_filters_; }
  double mu() const { return sampling_.mirostat.mu; }
  // Whether penalties, or DRY, change its rows.
  bool has_last_rules() const { return has_last_rules_; }

  // The sum of hidden states that becomes the slot's pooled vector, and how many were added.
  std::vector<double> pool;
  int64_t num_pooled = 0;

 private:
  bool is_open_ = false;
  SlotSampling sampling_;
  int32_t last_ = 0;
  int64_t num_output_ = 0;
  std::vector<int32_t> output_;
  TokenCounts seen_;  // empty without penalties
  CountedWindow window_;
  std::vector<int32_t> history_;
  bool has_filters_ = false;
  bool has_last_rules_ = false;
  bool is_followed_ = false;  // whether anything besides the last token depends on the output

  void count(int32_t token, float occurrences);
  void remember(int32_t token);
  void follow(int32_t token);
};

}  // namespace octavo
