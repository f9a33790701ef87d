// Trials: the same product by several kernels, timed, to find out which one is fastest here.
//
// Each trial multiplies panels of a made-up matrix, either cold (dropped from all caches before
// each attempt) or warm. Attempts go around all trials until a budget of computing time is used
// up; a trial's result is its shortest attempt, since other programs can only make one longer.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "choice/activity.h"
#include "kernels/table.h"

namespace octavo {

struct Trial {
  const KernelTable* kernels;
  Format format;
  int rows;
  int ahead;
  bool cold;
};

class Trials {
 public:
  // Throws std::bad_alloc. `seconds` are those that a thread computes.
  Trials(std::vector<Trial> trials, double seconds);
  ~Trials();  // a running measurement ends soon
  Trials(const Trials&) = delete;

  // Measures in the calling thread, or in one of its own that stops while there is a step, and for
  // a moment after it.
  void run();
  void begin(std::shared_ptr<const Activity> steps);

  bool done() const;
  // The shortest attempt of each trial in seconds, or infinity where there were too few; not before
  // `done`.
  const std::vector<double>& best() const;

 private:
  struct State;

  std::shared_ptr<State> state_;  // a thread may be the last to use it
};

}  // namespace octavo
