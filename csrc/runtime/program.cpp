// Replaying a program: what every step begins with, and the way through its instructions.
#include "runtime/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "runtime/workers.h"

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

// Sizes scratch grows to: powers of two from this on, so that it seldom grows.
constexpr int32_t kFewestRows = 16;
constexpr int32_t kMostRows = 1 << 20;

int32_t room_for(int32_t rows) {
  int32_t room = kFewestRows;
  while (room < rows) room *= 2;
  return room;
}

size_t kernel_scratch_of(const KernelTable& kernels, const Instruction& i) {
  size_t bytes = 0;
  for (const Piece& piece : i.pieces) bytes = std::max(bytes, kernels.gemm_scratch(piece.matrix));
  if (i.op == Op::Attention) bytes = std::max(bytes, kernels.attention_scratch(i.attention));
  return bytes;
}

bool is_cut_alike(const AttentionShape& one, const AttentionShape& other) {
  return one.heads == other.heads && one.kv_heads == other.kv_heads &&
         one.head_dim == other.head_dim && one.window == other.window;
}

}  // namespace

Program::Program(const KernelTable& kernels, std::shared_ptr<Team> team)
    : kernels_(kernels), team_(std::move(team)) {
  for (int index = 0; index < team_->size(); ++index) workers_.emplace_back();
}

Program::~Program() = default;

void Program::append(Instruction i) {
  if (i.op == Op::Attention) {
    const bool of_wanted = i.out.space == Space::Wanted;
    size_t plan = 0;
    while (plan < plans_.size() && !(plans_[plan].of_wanted == of_wanted &&
                                     is_cut_alike(plans_[plan].shape, i.attention)))
      ++plan;
    if (plan == plans_.size()) plans_.push_back({i.attention, of_wanted, {}, AttentionPlan()});
    std::vector<int32_t>& groups = plans_[plan].groups;
    if (std::find(groups.begin(), groups.end(), i.group) == groups.end()) groups.push_back(i.group);
    i.plan = static_cast<int32_t>(plan);
    groups_ = std::max(groups_, i.group + 1);
    const int group = i.attention.heads / i.attention.kv_heads;
    widest_ = std::max<size_t>(widest_, size_t{kAttentionRows} * group * i.attention.head_dim);
  }
  if (i.op == Op::Route) {
    if (top_k_ != 0 && top_k_ != i.route.top_k)
      throw std::invalid_argument("all layers must choose the same number of experts a token");
    top_k_ = i.route.top_k;
  }
  if (i.out.where == Ref::Where::LogitsOut) logits_stride_ = i.out.stride;
  if (i.out.where == Ref::Where::HiddenOut) hidden_stride_ = i.out.stride;
  kernel_scratch_ = std::max(kernel_scratch_, kernel_scratch_of(kernels_, i));
  const int across = i.x.width + i.y.width + i.values.width;
  widest_ = std::max<size_t>(widest_, static_cast<size_t>(across + 64));
  shares_.push_back(std::make_unique<Shares>(team_->size()));
  instructions_.push_back(std::move(i));
  seconds_.push_back(0.0);
  waits_.push_back(0.0);
}

int Program::add_rope(Rope rope) {
  rope.shape.dimensions = static_cast<int32_t>(rope.frequencies.size()) * 2;
  ropes_.push_back(std::move(rope));
  ropes_.back().shape.frequencies = nullptr;  // the tables are made of the vector itself
  tables_.emplace_back();
  return static_cast<int>(ropes_.size()) - 1;
}

void Program::set_scratch(Space space, int64_t row_bytes, int64_t prepared_row_bytes) {
  row_bytes_[static_cast<int>(space)] = row_bytes;
  prepared_row_bytes_[static_cast<int>(space)] = prepared_row_bytes;
}

// A block's cells of all layers lie together: [block][layer][keys, values][head][token], and the
// same once more for scales. So a sequence reads few pages of memory, huge ones where the system
// has them, though every layer looks into every block.
void Program::make_caches(CacheFormat format, int layers, int64_t blocks, int block_size,
                          int kv_heads, int head_dim) {
  const int64_t array_cells = int64_t{kv_heads} * block_size;  // of a block's keys, of a layer
  const int64_t block_cells = 2 * layers * array_cells;
  const size_t cell = cell_bytes(format, head_dim);
  const size_t bytes = (blocks * block_cells * cell + kAlign - 1) / kAlign * kAlign;
  const size_t scale_bytes =
      format == CacheFormat::Int8 ? blocks * block_cells * sizeof(float) : 0;
  cache_blocks_ = blocks;
  cache_pages_ = Pages(bytes + scale_bytes, true);
  block_bytes_ = block_cells * cell;
  block_scales_ = scale_bytes ? block_cells : 0;
  cache_scales_ = reinterpret_cast<float*>(cache_pages_.data() + bytes);
  caches_.clear();
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t keys = 2 * layer * array_cells, values = keys + array_cells;
    Cache cache{};
    cache.keys = cache_pages_.data() + keys * cell;
    cache.values = cache_pages_.data() + values * cell;
    if (scale_bytes) {
      cache.key_scales = cache_scales_ + keys;
      cache.value_scales = cache_scales_ + values;
    }
    cache.format = format;
    cache.block_size = block_size;
    cache.kv_heads = kv_heads;
    cache.head_dim = head_dim;
    cache.block_cells = block_cells;
    caches_.push_back(cache);
  }
}

void Program::copy_block(int64_t source, int64_t destination) {
  const std::lock_guard<std::mutex> mine(turn_);
  if (source < 0 || destination < 0 || source >= cache_blocks_ || destination >= cache_blocks_)
    throw std::invalid_argument("a block to be copied is not one of the cache's");
  if (source == destination) return;
  uint8_t* cells = cache_pages_.data();
  std::memcpy(cells + destination * block_bytes_, cells + source * block_bytes_, block_bytes_);
  if (block_scales_)
    std::memcpy(cache_scales_ + destination * block_scales_,
                cache_scales_ + source * block_scales_, block_scales_ * sizeof(float));
}

void Program::check(const Step& step) const {
  if (static_cast<int>(step.tables.size()) < groups_)
    throw std::invalid_argument("a table of blocks is missing");
  const int rows = step.rows[static_cast<int>(Space::Tokens)];
  if (rows < 1 || rows > kMostRows)
    throw std::invalid_argument("a step has from 1 to " + std::to_string(kMostRows) + " rows");
  if (step.row_starts[0] != 0 || step.row_starts[step.sequences] != rows)
    throw std::invalid_argument("row_starts must go from 0 to the number of rows");
  const int block_size = caches_.empty() ? 1 : caches_[0].block_size;
  for (int s = 0; s < step.sequences; ++s) {
    const int first = step.row_starts[s], end = step.row_starts[s + 1];
    if (first >= end) throw std::invalid_argument("a sequence has no rows");
    if (end > rows) throw std::invalid_argument("row_starts must go up to the number of rows");
    for (int row = first; row < end; ++row)
      if (step.positions[row] < 0 || step.positions[row] != step.positions[first] + row - first)
        throw std::invalid_argument("positions must go up by one from 0 or more");
    const int blocks = step.positions[end - 1] / block_size + 1;
    if (blocks > step.table_width) throw std::invalid_argument("a table of blocks is too short");
    for (const int32_t* table : step.tables)
      for (int index = 0; index < blocks; ++index) {
        const int32_t block = table[static_cast<size_t>(s) * step.table_width + index];
        if (block < 0 || block >= cache_blocks_)
          throw std::invalid_argument("a table names a block that is not one of the cache's");
      }
  }
  for (const Space space : {Space::Logits, Space::Hidden}) {
    const int index = static_cast<int>(space);
    for (int row = 0; row < step.rows[index]; ++row)
      if (step.selected[index][row] < 0 || step.selected[index][row] >= rows)
        throw std::invalid_argument("a row that is wanted is not one of the step's");
  }
}

// Which rows anything is wanted of, each once, and where those that are asked for are among them.
void Program::find_wanted() {
  wanted_places_.assign(rows_of(Space::Tokens), -1);
  wanted_rows_.clear();
  const auto asked = {static_cast<int>(Space::Logits), static_cast<int>(Space::Hidden)};
  for (const int space : asked)
    for (int row = 0; row < step_.rows[space]; ++row)
      wanted_places_[step_.selected[space][row]] = 0;
  for (size_t row = 0; row < wanted_places_.size(); ++row) {
    if (wanted_places_[row] < 0) continue;
    wanted_places_[row] = static_cast<int32_t>(wanted_rows_.size());
    wanted_rows_.push_back(static_cast<int32_t>(row));
  }
  for (const int space : asked) {
    places_[space].resize(step_.rows[space]);
    for (int row = 0; row < step_.rows[space]; ++row)
      places_[space][row] = wanted_places_[step_.selected[space][row]];
  }
  step_.rows[static_cast<int>(Space::Wanted)] = static_cast<int32_t>(wanted_rows_.size());
  step_.selected[static_cast<int>(Space::Wanted)] = wanted_rows_.data();
}

void Program::make_room(const Step& step) {
  for (int space = 0; space < kSpaces; ++space) {
    if (step.rows[space] <= capacity_[space]) continue;
    const int32_t room = room_for(step.rows[space]);
    capacity_[space] = 0;       // in case there is no memory
    scratch_[space] = Pages();  // the old one goes before the new one comes
    prepared_[space] = Pages();
    scratch_[space] = Pages(static_cast<size_t>(row_bytes_[space]) * room, room > 64);
    prepared_[space] = Pages(static_cast<size_t>(prepared_row_bytes_[space]) * room, room > 64);
    capacity_[space] = room;
  }
  const size_t rows = step.rows[static_cast<int>(Space::Tokens)];
  for (size_t rope = 0; rope < ropes_.size(); ++rope)
    if (tables_[rope].size() < rows * ropes_[rope].shape.dimensions)
      tables_[rope].resize(rows * ropes_[rope].shape.dimensions);
  const size_t pairs = step.rows[static_cast<int>(Space::Pairs)];
  if (pair_rows_.size() < pairs) {
    pair_rows_.resize(pairs);
    pair_weights_.resize(pairs);
  }
  size_t prepared = 0;
  for (const int64_t bytes : prepared_row_bytes_) prepared += bytes * kPrivateRows;
  for (Worker& worker : workers_)
    worker.make_room(kernel_scratch_, widest_, prepared);
}

void Program::run(const Step& step) {
  const std::lock_guard<std::mutex> mine(turn_);
  check(step);
  step_ = step;
  step_.rows[static_cast<int>(Space::Pairs)] =
      step.rows[static_cast<int>(Space::Tokens)] * top_k_;
  find_wanted();
  plan_attention();
  make_room(step_);
  ++epoch_;
  team_->run([this](int index) { work(index); });
}

void Program::work(int index) {
  Worker& worker = workers_[index];
  const bool timed = profiling_ && index == 0;
  auto began = timed ? Clock::now() : Clock::time_point();
  for (size_t at = 0; at < instructions_.size(); ++at) {
    const Instruction& i = instructions_[at];
    if (i.barrier) team_->meet();
    if (timed) {
      const auto met = Clock::now();
      waits_[at] += std::chrono::duration<double>(met - began).count();
      began = met;
    }
    if (step_.rows[static_cast<int>(i.space)] > 0) execute(i, *shares_[at], index, worker);
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

size_t Program::scratch_bytes() const {
  size_t bytes = 0;
  for (int space = 0; space < kSpaces; ++space)
    bytes += scratch_[space].bytes() + prepared_[space].bytes();
  return bytes;
}

}  // namespace octavo
