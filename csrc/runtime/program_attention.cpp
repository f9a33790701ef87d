// Attention: keys and values into the cache, and each item over all that its queries see.
//
// Where every sequence has one row (decoding), an item does everything for its KV head: it norms
// and turns the queries and the new key, writes the key and value, and attends. Nobody else reads
// what it writes, so no meeting lies between. Otherwise rows are finished first, and all meet.
#include <algorithm>
#include <cstring>

#include "runtime/program.h"

namespace octavo {

namespace {

// A norm over each head, as it is for `count` heads from `first` on.
NormShape heads_of(NormShape norm, int first, int count, int head_dim) {
  if (norm.weight_a_head) {
    norm.weight += static_cast<size_t>(first) * head_dim;
    if (norm.bias) norm.bias += static_cast<size_t>(first) * head_dim;
  }
  norm.heads = count;
  return norm;
}

// A KV head's cells, as a cache that has no other.
Cache one_head(Cache cache, int kv_head) {
  const int64_t first = int64_t{kv_head} * cache.block_size;
  const int64_t bytes = first * static_cast<int64_t>(cell_bytes(cache.format, cache.head_dim));
  cache.keys = static_cast<uint8_t*>(cache.keys) + bytes;
  cache.values = static_cast<uint8_t*>(cache.values) + bytes;
  if (cache.key_scales) cache.key_scales += first;
  if (cache.value_scales) cache.value_scales += first;
  cache.kv_heads = 1;
  return cache;
}

}  // namespace

void Program::plan_attention() {
  sequences_.resize(groups_);
  wanted_sequences_.resize(groups_);
  for (int group = 0; group < groups_; ++group) {
    sequences_[group].clear();
    wanted_sequences_[group].clear();
    for (int s = 0; s < step_.sequences; ++s) {
      const int first = step_.row_starts[s], end = step_.row_starts[s + 1];
      const int32_t* table = step_.tables[group] + static_cast<size_t>(s) * step_.table_width;
      sequences_[group].push_back({first, end - first, step_.positions[first], table});
      for (int row = first; row < end; ++row) {
        const int place = wanted_places_[row];
        if (place < 0) continue;
        if (row > first && wanted_places_[row - 1] >= 0) ++wanted_sequences_[group].back().rows;
        else wanted_sequences_[group].push_back({place, 1, step_.positions[row], table});
      }
    }
  }
  for (Attending& attending : plans_) {
    const auto& all = attending.of_wanted ? wanted_sequences_ : sequences_;
    std::vector<const SequenceRows*> sequences;
    for (const int32_t group : attending.groups) sequences.push_back(all[group].data());
    attending.plan.make(kernels_, attending.shape, sequences, static_cast<int>(all[0].size()),
                        caches_[0].block_size, team_->size());
    if (partials_.size() < attending.plan.partial_floats()) {
      std::vector<float>().swap(partials_);  // not both at once
      partials_.resize(attending.plan.partial_floats());
    }
  }
}

void Program::turn(int rope, float* x, size_t stride, int first, int rows, int width,
                   int head_dim) const {
  if (rope < 0) return;
  const RopeShape& shape = ropes_[rope].shape;
  kernels_.rope(x, stride, rows, width / head_dim, head_dim, step_.positions + first, shape,
                tables_[rope].data() + static_cast<size_t>(first) * shape.dimensions);
}

void Program::finish_rows(const Instruction& i, int first, int end) {
  const int rows = end - first, dim = i.attention.head_dim;
  float* q = at(i.x, first);
  float* k = at(i.y, first);
  if (i.norm.heads) normalise(i.norm, q, i.x.stride, rows, i.x.width, q, i.x.stride);
  if (i.k_norm.heads) normalise(i.k_norm, k, i.y.stride, rows, i.y.width, k, i.y.stride);
  turn(i.rope, q, i.x.stride, first, rows, i.x.width, dim);
  turn(i.rope, k, i.y.stride, first, rows, i.y.width, dim);
  const Cache& cache = caches_[i.layer];
  for (const SequenceRows& all : sequences_[i.group]) {
    const int begin = std::max(first, all.first_row);
    const int stop = std::min(end, all.first_row + all.rows);
    if (begin >= stop) continue;
    const SequenceRows mine{begin, stop - begin, all.first_position + begin - all.first_row,
                            all.table};
    kernels_.write_kv(cache, at(i.y), at(i.values), i.y.stride, mine);
  }
}

void Program::attention(const Instruction& i, Shares& shares, int index, Worker& worker) {
  const int rows = rows_of(Space::Tokens);
  const bool of_wanted = i.out.space == Space::Wanted;
  // A norm over all heads together needs the whole row, which an item of one head has not; and a
  // row that does not attend has no item to write its key.
  const bool alone = rows == step_.sequences && i.norm.heads != 1 && i.k_norm.heads != 1 &&
                     (!of_wanted || rows_of(Space::Wanted) == rows);
  if (!alone) {
    const int64_t threads = team_->size(), all = rows;
    const int first = static_cast<int>(all * index / threads);
    const int end = static_cast<int>(all * (index + 1) / threads);
    if (first < end) finish_rows(i, first, end);
    team_->meet();
  }
  Attending& attending = plans_[i.plan];
  const auto& sequences = (of_wanted ? wanted_sequences_ : sequences_)[i.group];
  AttentionCall call{&kernels_,    caches_[i.layer], i.attention,
                     sequences.data(), at(i.x), static_cast<size_t>(i.x.stride),
                     at(i.out),    static_cast<size_t>(i.out.stride), partials_.data()};
  shares.take_next(static_cast<int>(attending.plan.items().size()), epoch_, [&](int index) {
    const AttentionItem& item = attending.plan.items()[index];
    if (item.first_member >= 0) return attend_together(i, item, alone, call, worker);
    if (alone) {
      call.q = turn_alone(i, item, worker);
      call.q_stride = 0;  // it is the item's only row, whatever its number
    } else if (of_wanted) {
      // Queries are where their rows are among all of the step's, results among the wanted ones.
      const int place = sequences[item.sequence].first_row;
      call.q = at(i.x, wanted_rows_[place] - place);
    }
    attending.plan.run_item(index, call, worker.kernel_scratch);
  });
}

// An item of several sequences. Where each has one row, its queries are normed and turned here, as
// whoever reads the rest of what the row sees does it once more.
void Program::attend_together(const Instruction& i, const AttentionItem& item, bool alone,
                              const AttentionCall& call, Worker& worker) {
  Attending& attending = plans_[i.plan];
  const int group = i.attention.heads / i.attention.kv_heads;
  const int width = group * i.attention.head_dim;
  const float* queries[kAttentionRows];
  float* turned = worker.row;
  int count = 0;
  for (int at_member = item.first_member; at_member < item.end_member; ++at_member) {
    const AttentionMember& member = attending.plan.members()[at_member];
    const int place = call.sequences[member.sequence].first_row;
    for (int r = 0; r < member.rows; ++r, ++count) {
      const int row = i.out.space == Space::Wanted ? wanted_rows_[place + r] : place + r;
      const float* q = at(i.x, row) + item.kv_head * width;
      if (alone) {
        std::memcpy(turned, q, sizeof(float) * width);
        turn_heads(i, i.norm, row, item.kv_head * group, group, turned);
        q = turned;
        turned += width;
      }
      queries[count] = q;
    }
  }
  attending.plan.run_together(item, call, queries, worker.kernel_scratch);
}

// Norms and turns `heads` heads of a row, which are its heads from `first` on.
void Program::turn_heads(const Instruction& i, const NormShape& norm, int row, int first, int heads,
                         float* x) const {
  const int dim = i.attention.head_dim;
  if (norm.heads) {
    // a norm of one head looks like one over the whole row, which comes to the same
    const NormShape mine = heads_of(norm, first, heads, dim);
    normalise(mine, x, heads * dim, 1, heads * dim, x, heads * dim);
  }
  turn(i.rope, x, heads * dim, row, 1, heads * dim, dim);
}

// The item's only row: its queries normed and turned in the thread's own memory, its key and value
// written by whoever has the row's own position. What it gives stands for the row of all heads.
const float* Program::turn_alone(const Instruction& i, const AttentionItem& item, Worker& worker) {
  const int dim = i.attention.head_dim, group = i.attention.heads / i.attention.kv_heads;
  const int row = step_.row_starts[item.sequence], position = step_.positions[row];
  const int first = item.kv_head * group;
  float* q = worker.row;
  std::memcpy(q + first * dim, at(i.x, row) + first * dim, sizeof(float) * group * dim);
  turn_heads(i, i.norm, row, first, group, q + first * dim);
  if (item.end_split != position / kSplit + 1) return q;
  const Cache& whole = caches_[i.layer];
  float* k = worker.row + i.x.width;
  std::memcpy(k, at(i.y, row) + item.kv_head * dim, sizeof(float) * dim);
  turn_heads(i, i.k_norm, row, item.kv_head, 1, k);
  kernels_.write_kv(one_head(whole, item.kv_head), k, at(i.values, row) + item.kv_head * dim, dim,
                    {0, 1, position, sequences_[i.group][item.sequence].table});
  return q;
}

}  // namespace octavo
