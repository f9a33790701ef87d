// Sums of ranks on several machines.
#include "nodes/node_sums.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "link/frame_link.h"
#include "runtime/platform.h"

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

// A part of a small sum comes so soon that a thread that sleeps would wake later.
constexpr std::chrono::microseconds kSpinForParts{50};
constexpr int kMostWaitMilliseconds = 200;  // until it is asked again whether the group has ended

}  // namespace

NodeSums::NodeSums(std::shared_ptr<Ranks> given, int node, int nodes, Links links)
    : Sums(std::move(given)),
      node_(node),
      nodes_(nodes),
      links_(std::move(links)),
      parts_(ranks_->same(sizeof(float) * kFloats * 2 * nodes * ranks_->ranks(), true)) {
  static_assert(PartLink::kMostFloats >= kFloats);
  const size_t needed = ranks_->rank() > 0 ? 0 : node == 0 ? nodes - 1 : 1;
  if (node < 0 || node >= nodes || links_.size() != needed)
    throw std::invalid_argument("a node must be one of several, with links to those that it needs");
  ranks_->call_at_end([links = links_] {
    for (const std::shared_ptr<PartLink>& each : links) each->close();
  });
}

void NodeSums::meet(int thread, size_t, size_t all) {
  pass(thread);  // all rows of this node's parts are written
  if (ranks_->rank() == 0 && thread == 0) exchange(turns_[0].count, all);
  pass(thread);  // all parts of the others have come
  ++turns_[thread].count;
}

void NodeSums::pass(int thread) {
  try {
    ranks_->barrier().wait(ranks_->rank() * ranks_->threads() + thread);
  } catch (const Barrier::Abandoned&) {
    ranks_->raise();
  }
}

void NodeSums::exchange(uint32_t turn, size_t floats) {
  begin(turn, floats);
  size_t passed_on = node_ == 0 ? 0 : links_.size();
  auto since = Clock::now();
  for (;;) {
    const bool has_moved = turn_all();
    for (; passed_on < links_.size() && !links_[passed_on]->is_receiving(); ++passed_on)
      for (size_t other = 0; other < links_.size(); ++other)
        if (other != passed_on) put(other, node_at(passed_on), turn, floats);
    bool is_over = passed_on == links_.size();
    for (const std::shared_ptr<PartLink>& link : links_)
      is_over = is_over && !link->is_sending() && !link->is_receiving();
    if (is_over) break;
    if (has_moved) since = Clock::now();
    else if (Clock::now() - since < kSpinForParts) pause_spinning();
    else wait_for_any();
  }
  ++sum_;
}

// Sends the parts of this node to all others, or to the first one, and expects theirs.
void NodeSums::begin(uint32_t turn, size_t floats) {
  for (size_t link = 0; link < links_.size(); ++link) {
    put(link, node_, turn, floats);
    if (node_ == 0) expect(link, node_at(link), turn, floats);
  }
  for (int other = 0; node_ > 0 && other < nodes_; ++other)
    if (other != node_) expect(0, other, turn, floats);
}

void NodeSums::put(size_t link, int node, uint32_t turn, size_t floats) {
  for (int rank = first_of(node); rank < first_of(node + 1); ++rank)
    links_[link]->put(rank, sum_, part(rank, turn), floats);
}

void NodeSums::expect(size_t link, int node, uint32_t turn, size_t floats) {
  for (int rank = first_of(node); rank < first_of(node + 1); ++rank)
    links_[link]->expect(rank, sum_, part(rank, turn), floats);
}

bool NodeSums::turn_all() {
  bool has_moved = false;
  for (size_t link = 0; link < links_.size(); ++link) {
    try {
      has_moved |= links_[link]->turn();
    } catch (const std::runtime_error& error) {
      if (ranks_->has_ended()) ranks_->raise();  // which has closed the connection
      throw std::runtime_error("node " + std::to_string(node_at(link)) + ": " + error.what());
    }
  }
  return has_moved;
}

void NodeSums::wait_for_any() {
  if (ranks_->has_ended()) ranks_->raise();
  std::vector<const PartLink*> waiting;
  for (const std::shared_ptr<PartLink>& link : links_) waiting.push_back(link.get());
  PartLink::wait(waiting, kMostWaitMilliseconds);
}

}  // namespace octavo
