// The further stages of a pipeline, as the engine's process knows them. Steps go through them in
// order, several at once: each stage may compute another one.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "link/frame_link.h"
#include "program/step.h"

namespace octavo {

// Rows of floats in the caller's memory.
struct RowsAt {
  float* data = nullptr;
  int32_t rows = 0;
  int32_t width = 0;
  int64_t stride = 0;  // floats
};

class FurtherStages {
 public:
  explicit FurtherStages(std::vector<std::shared_ptr<FrameLink>> links);
  ~FurtherStages();
  FurtherStages(const FurtherStages&) = delete;

  int count() const { return static_cast<int>(stages_.size()); }

  // Starts the threads that carry rows; `on_come` is called in one when the rows of a step have
  // come, or a stage has failed.
  void start(std::function<void()> on_come);
  // Ends them, and with them the steps that have not come.
  void end();
  // What the thread of a stage does, from 0 on: carries what the stage makes of each step to the
  // next one, or here.
  void carry(int stage);

  // Copies a block of their caches before the step that is sent next.
  void copy(int32_t source, int32_t destination, int32_t group);
  // Sends the first of them a step and its rows. Throws std::runtime_error if that one has ended.
  void send(const StepInputs& in, const RowsAt& rows);
  // Returns when the rows of the oldest step have come, or a stage has failed.
  void wait();
  bool has_come() const;
  // Takes the rows that the stages have made of the oldest step, and waits for them. Throws
  // std::runtime_error if a stage has failed or ended.
  void receive(const RowsAt& out);

 private:
  using Content = std::vector<uint8_t>;
  struct Stage {
    std::shared_ptr<FrameLink> link;
    std::deque<Content> sent;  // the steps that it has, up to their rows
  };

  void pass(int stage, Content step, const Content& rows);
  bool wait_for_step(const Stage& stage);
  void fail(const std::string& why);
  void announce();

  std::vector<Stage> stages_;
  std::vector<int32_t> copies_;  // three numbers each
  std::vector<std::thread> threads_;
  std::function<void()> on_come_;
  const int process_;  // the one that has the threads

  mutable std::mutex turn_;  // of what follows, and of the steps of each stage
  std::deque<Content> come_;
  std::string failure_;
  bool is_over_ = false;  // it has failed or ended
  std::atomic<uint32_t> signals_{0};  // that anything of this has changed
};

}  // namespace octavo
