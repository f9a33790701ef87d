// Sums of ranks on several machines.
//
// The threads of a node's ranks write their rows to memory that these ranks map, and meet. One of
// them then sends the node's parts to the first node, which has a link to each other one, takes the
// parts of all others from there, and meets the threads again. The first node sends its own parts
// at once, so that two nodes wait for one way of the network, and passes on those of the others.
//
// A sum is that of all ranks' parts in their order, whichever node they are on.
#pragma once

#include <memory>
#include <vector>

#include "link/part_link.h"
#include "runtime/sums.h"

namespace octavo {

class NodeSums : public Sums {
 public:
  using Links = std::vector<std::shared_ptr<PartLink>>;

  // Each node has as many ranks. The first rank of the first node has a link to each other node, in
  // their order; that of another node has one, to the first; all others have none. Throws
  // std::bad_alloc if the ranks have no memory left.
  NodeSums(std::shared_ptr<Ranks> ranks, int node, int nodes, Links links);

  int count() const override { return nodes_ * ranks_->ranks(); }
  int rows_at_once(int width) const override { return kFloats / width; }
  float* own(int thread, size_t before) override {
    return part(first_of(node_) + ranks_->rank(), turns_[thread].count) + before;
  }
  void meet(int thread, size_t own, size_t all) override;
  const float* of(int rank, int thread, size_t before) const override {
    return part(rank, turns_[thread].count + 1) + before;
  }

 private:
  float* part(int rank, uint32_t turn) const {
    return reinterpret_cast<float*>(parts_.data()) + (size_t(rank) * 2 + turn % 2) * kFloats;
  }
  int first_of(int node) const { return node * ranks_->ranks(); }
  int node_at(size_t link) const { return node_ == 0 ? static_cast<int>(link) + 1 : 0; }
  void pass(int thread);
  void exchange(uint32_t turn, size_t floats);
  void begin(uint32_t turn, size_t floats);
  void put(size_t link, int node, uint32_t turn, size_t floats);
  void expect(size_t link, int node, uint32_t turn, size_t floats);
  bool turn_all();
  void wait_for_any();

  const int node_, nodes_;
  const Links links_;
  Pages parts_;
  uint64_t sum_ = 0;  // counts sums
};

}  // namespace octavo
