// Measuring trials.
#include "choice/trials.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "pack/pack.h"
#include "choice/product_kernels.h"
#include "runtime/arena.h"
#include "runtime/platform.h"

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kInputs = 1024;  // whole blocks of every format
constexpr size_t kColdBytes = size_t{1} << 20;
constexpr int kWarmPanels = 2;  // with the inputs of many rows they stay in the L2
constexpr int kWarmRepeats = 4;  // of so few panels, so that the clock's steps do not count
constexpr int kFewestAttempts = 3;
constexpr std::chrono::milliseconds kQuiet{40};  // longer than the pauses between a request's steps
// Every byte of weights and inputs: a small number in all formats, not denormal, not infinite.
constexpr int kFill = 0x11;

int panels_of(const Trial& trial) {
  if (!trial.cold) return kWarmPanels;
  return static_cast<int>(kColdBytes / panel_bytes(trial.format, kInputs));
}

}  // namespace

struct Trials::State {
  State(std::vector<Trial> all, double seconds)
      : trials(std::move(all)), budget(seconds), best(trials.size(), kNever) {
    size_t most_weights = 0, most_inputs = 0, most_outputs = 0, most_scratch = 0;
    for (const Trial& trial : trials) {
      const size_t rows = trial.rows;
      most_weights = std::max(most_weights, matrix_of(trial).panel_bytes * panels_of(trial));
      most_inputs = std::max(most_inputs,
                             rows * trial.kernels->prepared_bytes(trial.format, kInputs));
      most_outputs = std::max(most_outputs, rows * panels_of(trial) * kPanel * sizeof(float));
      most_scratch = std::max(most_scratch, trial.kernels->gemm_scratch(matrix_of(trial)));
    }
    weights = Pages(most_weights, true);
    inputs = Pages(most_inputs, false);
    outputs = Pages(most_outputs, false);
    scratch = Pages(most_scratch, false);
  }

  Matrix matrix_of(const Trial& trial) const {
    return {weights.data(), panel_bytes(trial.format, kInputs), panels_of(trial) * kPanel, kInputs,
            trial.format};
  }

  double attempt(const Trial& trial) {
    const Matrix matrix = matrix_of(trial);
    const int panels = panels_of(trial);
    if (trial.cold) forget_cached(weights.data(), matrix.panel_bytes * panels);
    Epilogue epilogue;
    epilogue.out = reinterpret_cast<float*>(outputs.data());
    epilogue.out_stride = static_cast<size_t>(panels) * kPanel;
    const auto multiply = [&] {
      trial.kernels->gemm(matrix, inputs.data(), trial.rows, 0, panels, scratch.data(), epilogue,
                          trial.ahead);
    };
    if (!trial.cold) multiply();  // what was tried before has other panels in the caches
    const int repeats = trial.cold ? 1 : kWarmRepeats;
    const auto began = Clock::now();
    for (int i = 0; i < repeats; ++i) multiply();
    return std::chrono::duration<double>(Clock::now() - began).count() / (panels * repeats);
  }

  // An attempt takes less than a millisecond: a step that begins meanwhile loses hardly anything.
  void wait_for_idleness() const {
    while (steps && !steps->is_idle(kQuiet) && !stop.load(std::memory_order_relaxed))
      std::this_thread::sleep_for(kQuiet / 4);
  }

  void measure() {
    wait_for_idleness();
    const double end = thread_seconds() + budget;
    std::memset(weights.data(), kFill, weights.bytes());
    std::memset(inputs.data(), kFill, inputs.bytes());
    int round = 0;
    while (!trials.empty() && thread_seconds() < end && !stop.load(std::memory_order_relaxed)) {
      for (size_t at = 0; at < trials.size(); ++at) {
        wait_for_idleness();
        const double took = attempt(trials[at]);
        if (round > 0) best[at] = std::min(best[at], took);  // the first touches pages and code
      }
      ++round;
    }
    if (round <= kFewestAttempts) std::fill(best.begin(), best.end(), kNever);
    weights = Pages();
    inputs = Pages();
    done.store(true, std::memory_order_release);
  }

  static constexpr double kNever = std::numeric_limits<double>::infinity();

  const std::vector<Trial> trials;
  const double budget;
  std::vector<double> best;
  std::shared_ptr<const Activity> steps;
  std::atomic<bool> stop{false};
  std::atomic<bool> done{false};
  Pages weights, inputs, outputs, scratch;
};

Trials::Trials(std::vector<Trial> trials, double seconds)
    : state_(std::make_shared<State>(std::move(trials), seconds)) {}

Trials::~Trials() { state_->stop.store(true, std::memory_order_relaxed); }

void Trials::run() { state_->measure(); }

void Trials::begin(std::shared_ptr<const Activity> steps) {
  state_->steps = std::move(steps);
  std::thread([state = state_] { state->measure(); }).detach();
}

bool Trials::done() const { return state_->done.load(std::memory_order_acquire); }

const std::vector<double>& Trials::best() const { return state_->best; }

}  // namespace octavo
