// Replaying a program: how every step begins, and the way through its instructions.
#include "program/program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "nodes/further_nodes.h"
#include "step/group_step.h"

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

size_t kernel_scratch_of(const KernelTable& kernels, const Instruction& i) {
  size_t bytes = 0;
  for (const Piece& piece : i.pieces) bytes = std::max(bytes, kernels.gemm_scratch(piece.matrix));
  if (i.op == Op::Attention) bytes = std::max(bytes, kernels.attention_scratch(i.attention));
  return bytes;
}

}  // namespace

Program::Program(const KernelTable& kernels, std::shared_ptr<Team> team,
                 std::shared_ptr<Sums> sums)
    : kernels_(kernels),
      team_(std::move(team)),
      sums_(std::move(sums)),
      context_(kernels, *team_),
      attention_(context_, ropes_),
      experts_(context_) {
  for (int index = 0; index < team_->size(); ++index) workers_.emplace_back();
  if (sums_ && (team_->ranks() || sums_->ranks().threads() != team_->size()))
    throw std::invalid_argument("ranks that add up have teams of their own, as large as they say");
  if (ranks()) number_ = ranks()->number_program();
}

void Program::append(Instruction i) {
  if (i.op == Op::Attention) attention_.add(i);
  if (i.op == Op::KeepKV) attention_.add_kept(i);
  experts_.add(i);
  if (i.out.where == Ref::Where::LogitsOut) logits_stride_ = i.out.stride;
  if (i.out.where == Ref::Where::HiddenOut) hidden_stride_ = i.out.stride;
  if (i.out.where == Ref::Where::KeptOut) kept_strides_.push_back(i.out.stride);
  if (i.out.where == Ref::Where::StateOut) {
    state_stride_ = i.out.stride;
    state_space_ = i.out.space;
  }
  if (i.op == Op::Given) reads_states_ = true;
  if (i.op == Op::Relay) relay_ = instructions_.size();
  if (i.op == Op::AllReduce && (!sums_ || i.x.width > Sums::kFloats))
    throw std::invalid_argument("a sum without ranks, or of rows of over " +
                                std::to_string(Sums::kFloats) + " numbers");
  kernel_scratch_ = std::max(kernel_scratch_, kernel_scratch_of(kernels_, i));
  const int across = i.x.width + i.y.width + i.values.width;
  const bool spreads = i.op == Op::Spread;
  const int32_t most = spreads ? i.out.width : i.x.width;
  const int32_t count = spreads ? i.x.width : i.prepared.inputs;
  for (const int32_t each : i.order) {
    if (each < 0 || each >= most)
      throw std::invalid_argument("an order of numbers names one that does not exist");
  }
  if ((spreads || !i.order.empty()) && i.order.size() != static_cast<size_t>(count))
    throw std::invalid_argument("an order of numbers has another length than rows");
  const size_t row_floats = static_cast<size_t>(across + 64) + i.order.size();
  widest_ = std::max({widest_, row_floats, attention_.widest()});
  if (i.op == Op::Convolve || i.op == Op::Keep || i.op == Op::Recall)
    state_groups_ = std::max(state_groups_, i.group + 1);
  if (i.op == Op::Shrink) widest_ = std::max(widest_, shrink_row_floats(i.x.width) * kShrinkRows);
  if (i.op == Op::Embed && i.product >= 0)
    widest_ = std::max(widest_, shrink_row_floats(i.out.width));
  if (i.op == Op::HeadGemm) {
    const Matrix& matrix = i.pieces[0].matrix;
    const size_t bytes = kHeadRows * kernels_.prepared_bytes(matrix.format, matrix.inputs);
    widest_ = std::max(widest_, bytes / sizeof(float));
  }
  if (team_->ranks() && i.op == Op::Attention)  // whose items all ranks take
    shares_.push_back(std::make_unique<Shares>(team_->ranks()->same(sizeof(uint64_t), false)));
  else
    shares_.push_back(std::make_unique<Shares>(team_->size()));
  instructions_.push_back(std::move(i));
  seconds_.push_back(0.0);
  waits_.push_back(0.0);
}

int Program::add_rope(std::vector<float> frequencies, bool interleaved, float magnitude) {
  return ropes_.add(std::move(frequencies), interleaved, magnitude);
}

void Program::set_scratch(Space space, int64_t row_bytes, int64_t prepared_row_bytes) {
  context_.scratch.set_row_bytes(space, row_bytes, prepared_row_bytes);
}

void Program::use_cache(std::shared_ptr<KvCache> cache) {
  const std::lock_guard<std::mutex> lock(running_);
  context_.cache = std::move(cache);
}

void Program::run(const StepInputs& inputs) {
  const std::lock_guard<std::mutex> lock(running_);
  if (reads_states_ && !inputs.given)
    throw std::invalid_argument("a program reads states, and is given none");
  const Activity::Step step(*activity_);
  begin(inputs);
  if (!ranks()) return compute();
  if (sums_) sums_->check_process();
  if (nodes_) nodes_->send(inputs);
  lead_step(inputs, number_, *ranks(), [this] { compute(); });
  if (nodes_) nodes_->receive(inputs, logits_stride_);
}

void Program::lead_node(const StepInputs& inputs) {
  const std::lock_guard<std::mutex> lock(running_);
  const Activity::Step step(*activity_);
  begin(with_own_results(inputs));
  lead_step(inputs, number_, *ranks(), [this] { compute(); });
}

void Program::follow(const StepInputs& inputs) {
  const std::lock_guard<std::mutex> lock(running_);
  begin(sums_ ? with_own_results(inputs) : inputs);
  compute();
}

// The first rank computes what all do for itself; of the logits each rank has its columns.
StepInputs Program::with_own_results(const StepInputs& inputs) {
  StepInputs in = inputs;
  int64_t floats = in.num_hidden * hidden_stride_ + in.num_logits * state_stride_;
  for (const int64_t stride : kept_strides_) floats += in.num_hidden * stride;
  if (static_cast<int64_t>(own_results_.size()) < floats) own_results_.resize(floats);
  float* to = own_results_.data();
  in.hidden_out = to;
  to += in.num_hidden * hidden_stride_;
  for (size_t kept = 0; kept < in.kept_out.size(); ++kept) {
    in.kept_out[kept] = to;
    to += in.num_hidden * kept_strides_.at(kept);
  }
  in.state_out = to;
  return in;
}

void Program::begin(const StepInputs& inputs) {
  context_.step.begin(inputs, *context_.cache, std::max(attention_.groups(), state_groups_),
                      experts_.top_k());
  context_.adapters.begin(context_.step);
}

void Program::compute() {
  const Part part = context_.step.inputs().part;
  if (part != Part::BehindStages) attention_.plan();  // no attention is behind them
  make_room();
  ++context_.epoch;
  team_->run([this](int index) { attempt(index); });
  if (part != Part::BeforeStages) experts_.end_step();
}

// The instructions of the running step's part, from the first up to the second number.
std::pair<size_t, size_t> Program::own_instructions() const {
  switch (context_.step.inputs().part) {
    case Part::BeforeStages: return {0, relay_ + 1};
    case Part::BehindStages: return {relay_, instructions_.size()};
    case Part::Whole: break;
  }
  return {0, instructions_.size()};
}

// The other ranks wait in a sum for what a thread of this one cannot compute.
void Program::attempt(int index) {
  try {
    work(index);
  } catch (const std::exception& error) {
    if (sums_) sums_->ranks().end(ranks()->name() + ": " + error.what());
    throw;
  }
}

void Program::copy_block(const BlockCopy& copy) {
  if (sums_) sums_->check_process();
  const std::lock_guard<std::mutex> lock(running_);
  context_.cache->copy_block(copy.source, copy.destination, copy.group);
  if (!sums_) return;
  if (nodes_) nodes_->copy(copy);
  const std::unique_lock<std::mutex> turn = ranks()->turn();
  post_copy(copy, number_, *ranks());
  ranks()->wait();
}

void Program::follow(const BlockCopy& copy) {
  const std::lock_guard<std::mutex> lock(running_);
  context_.cache->copy_block(copy.source, copy.destination, copy.group);
}

void Program::put_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> adapter,
                          float scale) {
  const std::lock_guard<std::mutex> lock(running_);
  const PostedAdapter posted{slot, scale, adapter ? adapter->place() : 0};
  put(slot, std::move(adapter), scale);
  Ranks* ranks = team_->ranks();
  if (!ranks) return;
  const std::unique_lock<std::mutex> turn = ranks->turn();
  post_adapter(posted, number_, *ranks);
  ranks->wait();
}

void Program::follow(const PostedAdapter& posted) {
  const std::lock_guard<std::mutex> lock(running_);
  std::shared_ptr<const PackedAdapter> adapter;
  if (posted.place != 0)
    adapter = std::make_shared<const PackedAdapter>(*team_->ranks(), posted.place);
  put(posted.slot, std::move(adapter), posted.scale);
}

void Program::put(int32_t slot, std::shared_ptr<const PackedAdapter> adapter, float scale) {
  for (const Instruction& i : instructions_) {
    if (!adapter || i.op != Op::WholeGemm) continue;
    const Matrix& matrix = adapter->whole(i.product).matrix;
    if (!matrix.data) continue;
    kernel_scratch_ = std::max(kernel_scratch_, kernels_.gemm_scratch(matrix));
    const size_t prepared = kernels_.prepared_bytes(matrix.format, matrix.inputs) / sizeof(float);
    widest_ = std::max(widest_, shrink_row_floats(i.x.width) + prepared * kShrinkRows);
  }
  context_.adapters.put(slot, std::move(adapter), scale);
}

size_t Program::reserve(int32_t rows, int32_t logits, int32_t hidden, int32_t sequences,
                        int32_t positions) {
  const std::lock_guard<std::mutex> lock(running_);
  context_.step.assume(rows, logits, hidden, experts_.top_k());
  make_room();
  if (team_->ranks()) attention_.reserve(sequences, positions);
  size_t bytes = context_.scratch.bytes() + ropes_.bytes() + experts_.bytes();
  for (const Worker& worker : workers_) bytes += worker.memory.bytes();
  return bytes + attention_.most_bytes(sequences, positions);
}

void Program::choose(Format format, int row_class, const KernelTable& kernels, int ahead) {
  const std::lock_guard<std::mutex> lock(running_);
  context_.products.choose(format, row_class, kernels, ahead);
  for (const Instruction& i : instructions_)
    kernel_scratch_ = std::max(kernel_scratch_, kernel_scratch_of(kernels, i));
}

void Program::make_room() {
  context_.scratch.reserve(context_.step);
  ropes_.reserve(context_.step.rows(Space::Tokens));
  experts_.reserve();
  for (Worker& worker : workers_)
    worker.reserve(kernel_scratch_, widest_, context_.scratch.private_bytes());
}

void Program::work(int index) {
  Worker& worker = workers_[index];
  const bool timed = profiling_ && index == 0, adapted = context_.adapters.are_used();
  auto began = timed ? Clock::now() : Clock::time_point();
  const auto [first, end] = own_instructions();
  for (size_t at = first; at < end; ++at) {
    const Instruction& i = instructions_[at];
    if (!adapted && is_for_adapters(i.op)) continue;
    if (adapted ? i.adapted_barrier : i.barrier) team_->barrier(index);
    if (timed) {
      const auto passed = Clock::now();
      waits_[at] += std::chrono::duration<double>(passed - began).count();
      began = passed;
    }
    if (context_.step.rows(i.space) > 0) execute(i, *shares_[at], index, worker);
    if (!timed) continue;
    const auto now = Clock::now();
    seconds_[at] += std::chrono::duration<double>(now - began).count();
    began = now;
  }
}

void Program::set_profiling(bool on) {
  profiling_ = on;
  std::fill(seconds_.begin(), seconds_.end(), 0.0);
  std::fill(waits_.begin(), waits_.end(), 0.0);
}

}  // namespace octavo
