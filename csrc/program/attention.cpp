// Attention of a program's layers.
#include "program/attention.h"

#include <algorithm>
#include <cstring>

namespace octavo {

namespace {

bool have_one_plan(const AttentionShape& one, const AttentionShape& other) {
  return one.heads == other.heads && one.kv_heads == other.kv_heads &&
         one.head_dim == other.head_dim && one.latent == other.latent &&
         one.window == other.window && one.skipped == other.skipped &&
         one.both_ways == other.both_ways;
}

// All heads read the same latent row. For the plan they are groups of at most so many, as if each
// group had a KV head of its own: an item's queries and sums then stay in a thread's caches.
constexpr int kLatentGroup = 16;

int latent_group(int heads) {
  int group = std::min(heads, kLatentGroup);
  while (heads % group) --group;
  return group;
}

// From so many bytes on, partial sums are in huge pages.
constexpr size_t kBytesOfHugePages = size_t{8} << 20;

bool is_of_wanted(const Instruction& i) { return i.out.space == Space::Wanted; }

// A norm over each head, for `count` heads from `first` on.
NormShape heads_of(NormShape norm, int first, int count, int head_dim) {
  if (norm.weight_a_head) {
    norm.weight += static_cast<size_t>(first) * head_dim;
    if (norm.bias) norm.bias += static_cast<size_t>(first) * head_dim;
  }
  norm.heads = count;
  return norm;
}

// Where a thread's rows begin that would begin at `row`: two tokens that are a pair in the cache,
// where they may share bytes, are written by one thread.
int whole_pairs(const std::vector<SequenceRows>& sequences, int row) {
  for (const SequenceRows& all : sequences) {
    if (row <= all.first_row || row >= all.first_row + all.rows) continue;
    return row + (all.first_position + row - all.first_row) % 2;
  }
  return row;
}

// A KV head's cells, as a cache that has no other head.
Cache one_head(Cache cache, int kv_head) {
  const int64_t first = int64_t{kv_head} * cache.head_cells;
  const int64_t bytes = first * static_cast<int64_t>(cell_bytes(cache.format, cache.head_dim));
  cache.keys = static_cast<uint8_t*>(cache.keys) + bytes;
  cache.values = static_cast<uint8_t*>(cache.values) + bytes;
  if (cache.key_scales) cache.key_scales += first;
  if (cache.value_scales) cache.value_scales += first;
  cache.kv_heads = 1;
  return cache;
}

}  // namespace

void Attention::add(Instruction& i) {
  AttentionShape& shape = i.attention;
  if (shape.latent) shape.kv_heads = shape.heads / latent_group(shape.heads);
  const bool of_wanted = is_of_wanted(i);
  size_t plan = 0;
  while (plan < plans_.size() && !(plans_[plan].of_wanted == of_wanted &&
                                   have_one_plan(plans_[plan].shape, i.attention)))
    ++plan;
  if (plan == plans_.size())
    plans_.push_back({i.attention, of_wanted, {}, AttentionPlan(context_.team.ranks())});
  std::vector<int32_t>& groups = plans_[plan].groups;
  if (std::find(groups.begin(), groups.end(), i.group) == groups.end()) groups.push_back(i.group);
  i.plan = static_cast<int32_t>(plan);
  groups_ = std::max(groups_, i.group + 1);
  const int group = i.attention.heads / i.attention.kv_heads;
  widest_ = std::max<size_t>(widest_, size_t{kAttentionRows} * group * i.attention.head_dim);
}

void Attention::add_kept(const Instruction& i) { groups_ = std::max(groups_, i.group + 1); }

size_t Attention::most_bytes(int32_t sequences, int32_t positions) const {
  size_t most = 0;
  for (const LayerPlan& each : plans_)
    most = std::max(
        most, AttentionPlan::most_partial_floats(context_.kernels, each.shape, sequences, positions,
                                                 context_.team.all()));
  return most * sizeof(float);
}

void Attention::reserve(int32_t sequences, int32_t positions) {
  take_partials(most_bytes(sequences, positions));
}

void Attention::take_partials(size_t bytes) {
  if (partials_.bytes() >= bytes) return;
  partials_ = Pages();  // the old memory is returned before new memory is taken
  partials_ = pages_for(context_.team.ranks(), bytes, bytes >= kBytesOfHugePages);
}

void Attention::plan() {
  const StepInputs& in = context_.step.inputs();
  const std::vector<int32_t>& places = context_.step.wanted_places();
  sequences_.resize(groups_);
  echoes_.resize(groups_);
  wanted_sequences_.resize(groups_);
  for (int group = 0; group < groups_; ++group) {
    std::vector<SequenceRows>& wanted = wanted_sequences_[group];
    sequences_[group].clear();
    echoes_[group].clear();
    wanted.clear();
    for (int32_t echo = 0; echo < in.num_echoes; ++echo) {
      const RowEcho& each = in.echoes[echo];
      const int32_t* table = in.tables[group] + static_cast<size_t>(each.sequence) * in.table_width;
      echoes_[group].push_back({each.first_row, each.rows, in.positions[each.first_row], table, 0});
    }
    for (int s = 0; s < in.sequences; ++s) {
      const int first = in.row_starts[s], end = in.row_starts[s + 1];
      const int32_t* table = in.tables[group] + static_cast<size_t>(s) * in.table_width;
      const int last = in.positions[end - 1] + 1;
      sequences_[group].push_back({first, end - first, in.positions[first], table, last});
      for (int row = first; row < end; ++row) {
        if (places[row] < 0) continue;
        if (row > first && places[row - 1] >= 0) ++wanted.back().rows;
        else wanted.push_back({places[row], 1, in.positions[row], table, last});
      }
    }
  }
  for (LayerPlan& layers : plans_) {
    const auto& all = layers.of_wanted ? wanted_sequences_ : sequences_;
    std::vector<const SequenceRows*> sequences;
    for (const int32_t group : layers.groups) sequences.push_back(all[group].data());
    layers.plan.make(context_.kernels, layers.shape, sequences, static_cast<int>(all[0].size()),
                     context_.cache->block_size(), context_.team.all());
    const size_t bytes = layers.plan.partial_floats() * sizeof(float);
    if (partials_.bytes() < bytes) take_partials(bytes + bytes / 4);
  }
}

void Attention::rotate(const Instruction& i, float* x, size_t stride, int first, int rows,
                       int width) const {
  ropes_.rotate(context_.kernels, i.rope, context_.step.inputs().positions, x, stride, first, rows,
                width, i.attention.head_dim);
}

// Finishes this worker's share of the rows.
void Attention::finish_share(const Instruction& i, int worker_index, Worker& worker) const {
  int first, end;
  share_of(context_.team.number(worker_index), context_.team.all(),
           context_.step.rows(Space::Tokens), first, end);
  first = whole_pairs(sequences_[i.group], first);
  end = whole_pairs(sequences_[i.group], end);
  if (first < end) finish_rows(i, first, end, worker);
}

// Normalises and rotates rows [first, end), and writes their keys and values.
void Attention::finish_rows(const Instruction& i, int first, int end, Worker& worker) const {
  const KernelTable& kernels = context_.kernels;
  const int rows = end - first;
  float* q = i.op == Op::KeepKV ? nullptr : context_.at(i.x, first);
  if (i.attention.latent) {
    rotate(i, q, i.x.stride, first, rows, i.x.width);
    for (const SequenceRows& all : sequences_[i.group]) write_latents(i, all, first, end, worker);
    return;
  }
  float* k = context_.at(i.y, first);
  if (q && i.norm.heads) normalise(kernels, i.norm, q, i.x.stride, rows, i.x.width, q, i.x.stride);
  if (i.k_norm.heads) normalise(kernels, i.k_norm, k, i.y.stride, rows, i.y.width, k, i.y.stride);
  if (q) rotate(i, q, i.x.stride, first, rows, i.x.width);
  rotate(i, k, i.y.stride, first, rows, i.y.width);
  const Cache& cache = context_.cache->layer(i.group, i.layer);
  for (const SequenceRows& all : sequences_[i.group]) {
    const int begin = std::max(first, all.first_row);
    const int stop = std::min(end, all.first_row + all.rows);
    if (begin >= stop) continue;
    const SequenceRows mine{begin, stop - begin, all.first_position + begin - all.first_row,
                            all.table};
    kernels.write_kv(cache, context_.at(i.y), context_.at(i.values), i.y.stride, mine);
  }
}

// Writes the keys of a sequence's rows in [first, end), whose parts lie apart, as many at a time as
// an item's queries take of the thread's memory.
void Attention::write_latents(const Instruction& i, const SequenceRows& all, int first, int end,
                              Worker& worker) const {
  const int dim = i.attention.head_dim, latent = i.attention.latent, turning = dim - latent;
  const Cache& cache = context_.cache->layer(i.group, i.layer);
  const int stop = std::min(end, all.first_row + all.rows);
  for (int row = std::max(first, all.first_row); row < stop;) {
    const int position = all.first_position + row - all.first_row;
    const int count = std::min(stop - row, kAttentionRows);
    for (int r = 0; r < count; ++r) {
      float* key = worker.row + static_cast<size_t>(r) * dim;
      std::memcpy(key, context_.at(i.y, row + r), sizeof(float) * turning);
      std::memcpy(key + turning, context_.at(i.values, row + r), sizeof(float) * latent);
    }
    ropes_.rotate(context_.kernels, i.rope, context_.step.inputs().positions, worker.row, dim, row,
                  count, dim, dim);
    context_.kernels.write_kv(cache, worker.row, worker.row, dim,
                              {0, count, position, all.table});
    row += count;
  }
}

// Writes finished rows where branches keep them too, whose own rows are written. A branch's rows
// are written by one thread: two tokens may share bytes.
void Attention::write_echoes(const Instruction& i, int worker_index, Worker& worker) const {
  const StepInputs& in = context_.step.inputs();
  const Cache& cache = context_.cache->layer(i.group, i.layer);
  const int number = context_.team.number(worker_index);
  for (int32_t echo = 0; echo < in.num_echoes; ++echo) {
    if (in.echoes[echo].sequence % context_.team.all() != number) continue;
    const SequenceRows& all = echoes_[i.group][echo];
    if (i.attention.latent)
      write_latents(i, all, all.first_row, all.first_row + all.rows, worker);
    else
      context_.kernels.write_kv(cache, context_.at(i.y), context_.at(i.values), i.y.stride, all);
  }
}

void Attention::keep(const Instruction& i, int worker_index, Worker& worker) {
  finish_share(i, worker_index, worker);
  if (context_.step.inputs().num_echoes == 0) return;
  context_.team.barrier(worker_index);
  write_echoes(i, worker_index, worker);
}

void Attention::run(const Instruction& i, Shares& shares, int worker_index, Worker& worker) {
  const Step& step = context_.step;
  const int rows = step.rows(Space::Tokens);
  const bool of_wanted = is_of_wanted(i);
  // A norm over all heads together needs the whole row, and an item has only one head of it; and a
  // row that does not attend has no item that would write its key.
  const bool is_whole_row = (i.norm.heads == 1 && i.attention.heads > 1) ||
                            (i.k_norm.heads == 1 && i.attention.kv_heads > 1);
  // A latent row is written once, and not by each item that reads it.
  const bool alone = rows == step.inputs().sequences && !is_whole_row && !i.attention.latent &&
                     (!of_wanted || step.rows(Space::Wanted) == rows) &&
                     step.inputs().num_echoes == 0;
  if (!alone) {
    finish_share(i, worker_index, worker);
    context_.team.barrier(worker_index);
    if (step.inputs().num_echoes > 0) {
      write_echoes(i, worker_index, worker);
      context_.team.barrier(worker_index);
    }
  }
  AttentionPlan& plan = plans_[i.plan].plan;
  const auto& sequences = (of_wanted ? wanted_sequences_ : sequences_)[i.group];
  AttentionCall call{&context_.kernels,
                     context_.cache->layer(i.group, i.layer),
                     i.attention,
                     sequences.data(),
                     context_.at(i.x),
                     static_cast<size_t>(i.x.stride),
                     context_.at(i.out),
                     static_cast<size_t>(i.out.stride),
                     reinterpret_cast<float*>(partials_.data())};
  // A sequence's heads are neighbours in memory and among the items.
  const int count = static_cast<int>(plan.items().size());
  shares.take_next(count, context_.epoch, plan.run(), [&](int index, int coming) {
    const AttentionItem& item = plan.items()[index];
    if (item.first_member >= 0) return attend_together(i, item, alone, call, worker);
    if (alone) {
      call.q = finish_alone(i, item, worker);
      call.q_stride = 0;  // it is the item's only row, whatever its number
    } else if (of_wanted) {
      // Queries lie among all of the step's rows, results among the wanted ones.
      const int place = sequences[item.sequence].first_row;
      call.q = context_.at(i.x, step.wanted_rows()[place] - place);
    }
    plan.run_item(index, coming, call, worker.kernel_scratch);
  });
}

// An item of several sequences. If each has one row, its queries are normalised and rotated here,
// and once more by the thread that reads the rest of the positions that the row sees.
void Attention::attend_together(const Instruction& i, const AttentionItem& item, bool alone,
                                const AttentionCall& call, Worker& worker) {
  AttentionPlan& plan = plans_[i.plan].plan;
  const int group = i.attention.heads / i.attention.kv_heads;
  const int width = group * i.attention.head_dim;
  const float* queries[kAttentionRows];
  float* finished = worker.row;
  int count = 0;
  for (int at_member = item.first_member; at_member < item.end_member; ++at_member) {
    const AttentionMember& member = plan.members()[at_member];
    const int place = call.sequences[member.sequence].first_row;
    for (int r = 0; r < member.rows; ++r, ++count) {
      const int row = is_of_wanted(i) ? context_.step.wanted_rows()[place + r] : place + r;
      const float* q = context_.at(i.x, row) + item.kv_head * width;
      if (alone) {
        std::memcpy(finished, q, sizeof(float) * width);
        finish_heads(i, i.norm, row, item.kv_head * group, group, finished);
        q = finished;
        finished += width;
      }
      queries[count] = q;
    }
  }
  plan.run_together(item, call, queries, worker.kernel_scratch);
}

// Normalises and rotates `heads` heads of a row, which are its heads from `first` on.
void Attention::finish_heads(const Instruction& i, const NormShape& norm, int row, int first,
                             int heads, float* x) const {
  const int dim = i.attention.head_dim;
  if (norm.heads) {
    // A norm of one head looks like one over the whole row; the result is the same.
    const NormShape mine = heads_of(norm, first, heads, dim);
    normalise(context_.kernels, mine, x, heads * dim, 1, heads * dim, x, heads * dim);
  }
  rotate(i, x, heads * dim, row, 1, heads * dim);
}

// Finishes the item's only row in the thread's own memory: its queries, and if the item has the
// row's own position, its key and value, which are written. Returns where the row of all heads
// would begin.
const float* Attention::finish_alone(const Instruction& i, const AttentionItem& item,
                                     Worker& worker) const {
  const StepInputs& in = context_.step.inputs();
  const int dim = i.attention.head_dim, group = i.attention.heads / i.attention.kv_heads;
  const int row = in.row_starts[item.sequence], position = in.positions[row];
  const int first = item.kv_head * group;
  float* q = worker.row;
  std::memcpy(q + first * dim, context_.at(i.x, row) + first * dim, sizeof(float) * group * dim);
  finish_heads(i, i.norm, row, first, group, q + first * dim);
  if (item.end_split != position / kSplit + 1) return q;
  float* k = worker.row + i.x.width;
  std::memcpy(k, context_.at(i.y, row) + item.kv_head * dim, sizeof(float) * dim);
  finish_heads(i, i.k_norm, row, item.kv_head, 1, k);
  context_.kernels.write_kv(one_head(context_.cache->layer(i.group, i.layer), item.kv_head), k,
                            context_.at(i.values, row) + item.kv_head * dim, dim,
                            {0, 1, position, sequences_[i.group][item.sequence].table});
  return q;
}

}  // namespace octavo
