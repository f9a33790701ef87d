// The further stages of a pipeline, as the engine's process knows them.
#include "step/further_stages.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/platform.h"
#include "step/stage_frame.h"

namespace octavo {

namespace {

void add(std::vector<uint8_t>& content, const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  if (bytes > 0) content.insert(content.end(), from, from + bytes);
}

std::string of_stage(int stage, const std::exception& error) {
  return "stage " + std::to_string(stage + 1) + ": " + error.what();
}

}  // namespace

FurtherStages::FurtherStages(std::vector<std::shared_ptr<FrameLink>> links)
    : process_(process_id()) {
  for (std::shared_ptr<FrameLink>& link : links) stages_.push_back({std::move(link), {}});
}

FurtherStages::~FurtherStages() { end(); }

void FurtherStages::start(std::function<void()> on_come) {
  on_come_ = std::move(on_come);
  for (int stage = 0; stage < count(); ++stage)
    threads_.emplace_back([this, stage] { carry(stage); });
}

void FurtherStages::end() {
  if (process_id() != process_) {  // a forked process has no threads that could be joined
    new std::vector<std::thread>(std::move(threads_));
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(turn_);
    if (!is_over_) failure_ = "the engine has ended";
    is_over_ = true;
    for (const Stage& stage : stages_)
      if (!stage.sent.empty()) stage.link->close();  // a thread waits for it
  }
  announce();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void FurtherStages::announce() {
  signals_.fetch_add(1);
  wake_all(signals_);
}

void FurtherStages::fail(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(turn_);
    if (!is_over_) failure_ = why;
    is_over_ = true;
  }
  announce();
}

void FurtherStages::carry(int number) {
  Stage& stage = stages_[number];
  while (wait_for_step(stage)) {
    try {
      FrameLink::Frame frame = stage.link->receive();
      if (frame.kind == FrameLink::Kind::Failure)
        throw std::runtime_error(std::string(frame.content.begin(), frame.content.end()));
      if (frame.kind != FrameLink::Kind::Rows)
        throw std::runtime_error("it has sent something else than the rows of its step");
      std::unique_lock<std::mutex> lock(turn_);
      Content step = std::move(stage.sent.front());
      stage.sent.pop_front();
      const bool is_last = number + 1 == count();
      if (is_last) come_.push_back(std::move(frame.content));
      lock.unlock();
      if (is_last) announce();
      else pass(number, std::move(step), frame.content);
    } catch (const std::exception& error) {
      fail(of_stage(number, error));
    }
    if (on_come_ && has_come()) on_come_();
  }
}

// Waits until the stage has a step; false if there will be none.
bool FurtherStages::wait_for_step(const Stage& stage) {
  for (;;) {
    const uint32_t seen = signals_.load();
    {
      const std::lock_guard<std::mutex> lock(turn_);
      if (is_over_) return false;
      if (!stage.sent.empty()) return true;
    }
    sleep_while(signals_, seen);
  }
}

// Sends what a stage has made of a step to the next one.
void FurtherStages::pass(int stage, Content step, const Content& rows) {
  Sizes sizes;
  std::memcpy(&sizes, step.data(), sizeof sizes);
  const size_t row_bytes = sizeof(float) * sizes.rows;
  if (sizes.rows == 0 || rows.size() % row_bytes != 0)
    throw std::runtime_error("it has sent something else than the rows of its step");
  sizes.width = static_cast<int32_t>(rows.size() / row_bytes);  // as they lie in its memory
  std::memcpy(step.data(), &sizes, sizeof sizes);
  Content content = step;
  add(content, rows.data(), rows.size());
  Stage& next = stages_[stage + 1];
  {
    const std::lock_guard<std::mutex> lock(turn_);
    if (is_over_) return;  // `end` leaves links open that have no step, and waits for this thread
    next.sent.push_back(std::move(step));
  }
  announce();
  next.link->send(FrameLink::Kind::Step, content);
}

void FurtherStages::copy(int32_t source, int32_t destination, int32_t group) {
  copies_.insert(copies_.end(), {source, destination, group});
}

void FurtherStages::send(const StepInputs& in, const RowsAt& rows) {
  StepInputs step = in;
  const Sizes sizes{in.num_rows, in.sequences, in.table_width,
                    static_cast<int32_t>(in.tables.size()), in.num_logits, in.num_hidden,
                    in.types != nullptr, static_cast<int32_t>(copies_.size()), rows.width};
  Content numbers;
  add(numbers, &sizes, sizeof sizes);
  add(numbers, copies_.data(), copies_.size() * 4);
  for_each_array(sizes, step,
                 [&](const int32_t*& array, int64_t count) { add(numbers, array, count * 4); });
  const size_t row_bytes = sizeof(float) * rows.width;
  Content content = numbers;
  content.reserve(content.size() + row_bytes * rows.rows);
  for (int32_t row = 0; row < rows.rows; ++row)
    add(content, rows.data + row * rows.stride, row_bytes);
  copies_.clear();
  {
    const std::lock_guard<std::mutex> lock(turn_);
    if (is_over_) throw std::runtime_error(failure_);
    stages_[0].sent.push_back(std::move(numbers));
  }
  announce();
  try {
    stages_[0].link->send(FrameLink::Kind::Step, content);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(of_stage(0, error));
  }
}

bool FurtherStages::has_come() const {
  const std::lock_guard<std::mutex> lock(turn_);
  return is_over_ || !come_.empty();
}

void FurtherStages::wait() {
  for (;;) {
    const uint32_t seen = signals_.load();
    if (has_come()) return;
    sleep_while(signals_, seen);
  }
}

void FurtherStages::receive(const RowsAt& out) {
  wait();
  Content content;
  {
    const std::lock_guard<std::mutex> lock(turn_);
    if (come_.empty()) throw std::runtime_error(failure_);
    content = std::move(come_.front());
    come_.pop_front();
  }
  // Rows lie apart as in the memory of the stage.
  const size_t apart = out.rows ? content.size() / out.rows : 0, bytes = sizeof(float) * out.width;
  if (content.size() != apart * out.rows || (out.rows && apart < bytes))
    throw std::runtime_error("stage " + std::to_string(count()) +
                             ": it has sent something else than the rows of its step");
  for (int32_t row = 0; row < out.rows; ++row)
    std::memcpy(out.data + row * out.stride, content.data() + row * apart, bytes);
}

}  // namespace octavo
