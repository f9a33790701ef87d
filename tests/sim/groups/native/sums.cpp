// A group of ranks that add up on a simulated machine: nodes of some ranks each, with links.
//
// Every rank keeps all rows, as if for heads of its own, and makes a part of each number: what is
// added up for the wrong sum, row or rank is another number. Two layers add up, a few rows at once.
#include <sys/mman.h>

#include "group.h"
#include "link/frame_link.h"
#include "link/part_link.h"
#include "nodes/following.h"
#include "nodes/further_nodes.h"
#include "nodes/node_sums.h"
#include "program/program.h"

namespace octavo {

namespace {

constexpr size_t kMemory = size_t{16} << 20;
constexpr int kLayers = 2;
constexpr int kPieces = 4;      // of a state, each a number that a float can be
constexpr int kPieceBits = 16;
constexpr int kRowsAtOnce = 3;  // that are added up in one sum
constexpr int kMostRows = 512;

float piece_of(uint64_t state, int piece) {
  return static_cast<float>(state >> (piece * kPieceBits) & 0xFFFF);
}

uint64_t state_of(const float* pieces) {
  uint64_t state = 0;
  for (int piece = 0; piece < kPieces; ++piece)
    state |= static_cast<uint64_t>(pieces[piece]) << (piece * kPieceBits);
  return state;
}

class SumGroup : public Group {
 public:
  SumGroup(int members, int nodes, int blocks, int block_size, uint64_t seed,
           const sim::Weather& weather)
      : Group(members, blocks, block_size, seed, weather),
        nodes_(nodes),
        per_node_(members / nodes),
        sums_(members) {
    sim::machine = &machine;
    connect();
    for (int node = 0; node < nodes; ++node) make_node(node);
    std::vector<std::shared_ptr<FrameLink>> links(steps_.begin() + 1, steps_.end());
    further_ = std::make_unique<FurtherNodes>(links, kPieces);
    results_ = ranks_[0]->own(sizeof(float) * kMostRows * stride(), false);
    start_members([this](int number) { number % per_node_ ? follow(number) : lead_node(number); });
    for (int node = 1; node < nodes_; ++node)
      machine.sockets_of[node * per_node_ - 1] = {their_steps_[node], their_parts_[node]};
  }

  ~SumGroup() override {
    for (int node = 1; node < nodes_; ++node) close(their_steps_[node]);
  }

  void begin_step(const Rows& step) override {
    for (size_t at = 0; at < step.copies.size(); at += 2) {
      const BlockCopy copy{step.copies[at], step.copies[at + 1], 0};
      copy_in_ranks(0, copy, [&] { further_->copy(copy); });
    }
    StepInputs in = inputs_of(step);
    in.logits_out = reinterpret_cast<float*>(results_.data());
    further_->send(in);
    lead_step(in, programs_[0], *ranks_[0], [&] { share(in, 0); });
    further_->receive(in, stride());
    std::vector<uint64_t>& found = found_.emplace_back();
    for (int row = 0; row < in.num_logits; ++row) {
      uint64_t state = 0;
      for (int node = 0; node < nodes_; ++node)
        state |= state_of(in.logits_out + row * stride() + node * kPieces);
      found.push_back(mix(state, version));
    }
  }

  void finish_step(std::vector<uint64_t>& states) override {
    states = std::move(found_.front());
    found_.pop_front();
  }

  void send(uint64_t now) override {
    for (int node = 1; node < nodes_; ++node)
      steps_[node]->send(FrameLink::Kind::Message, reinterpret_cast<const uint8_t*>(&now),
                         sizeof now);
    send_to_ranks(0, now);
  }

  // A further node sees the end of its connection, and ends with all of its ranks.
  void end(const std::string& reason) override {
    ranks_[0]->end(reason);
    for (int node = 1; node < nodes_; ++node) steps_[node]->close();
    for (int number = per_node_; number < members_; ++number) machine.kill(member(number));
  }

  int num_layers() const override { return kLayers; }

 private:
  int64_t stride() const { return int64_t{nodes_} * kPieces; }

  // Two connections for each further node: for steps, and for the parts of sums.
  void connect() {
    steps_.resize(nodes_);
    their_steps_.resize(nodes_);
    their_parts_.resize(nodes_);
    parts_.resize(nodes_);
    for (int node = 1; node < nodes_; ++node) {
      const auto [steps, their_steps] = machine.connect();
      steps_[node] = std::make_shared<FrameLink>(steps);
      their_steps_[node] = their_steps;
      const auto [parts, their_parts] = machine.connect(true);
      const std::string down(Sealing::kKeyBytes, 'd'), up(Sealing::kKeyBytes, 'u');
      parts_[0].push_back(std::make_shared<PartLink>(parts, down, up));
      parts_[node] = {std::make_shared<PartLink>(their_parts, up, down)};
      their_parts_[node] = their_parts;
    }
  }

  void make_node(int node) {
    const int memory = memfd_create("a simulated node", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, kMemory) != 0) throw std::bad_alloc();
    for (int rank = 0; rank < per_node_; ++rank) {
      ranks_.push_back(std::make_shared<Ranks>(memory, kMemory, rank, per_node_, 1));
      programs_.push_back(ranks_.back()->number_program());
      const NodeSums::Links none, &links = rank == 0 ? parts_[node] : none;
      sums_[node * per_node_ + rank] =
          std::make_unique<NodeSums>(ranks_.back(), node, nodes_, links);
      cells_.emplace_back(kLayers,
                          std::vector<Cell>(int64_t{num_blocks_} * block_size_));
    }
    close(memory);
  }

  Blocks blocks_of(int number, int layer) {
    return {cells_[number][layer].data(), block_size_};
  }

  void copy(int number, const BlockCopy& copy) {
    for (int layer = 0; layer < kLayers; ++layer)
      blocks_of(number, layer).copy(copy.source, copy.destination);
  }

  // As `Program::copy_block` does.
  void copy_in_ranks(int first, const BlockCopy& given, const std::function<void()>& before) {
    copy(first, given);
    before();
    Ranks& ranks = *ranks_[first];
    const std::unique_lock<std::mutex> turn = ranks.turn();
    post_copy(given, programs_[first], ranks);
    ranks.wait();
  }

  void send_to_ranks(int first, uint64_t now) {
    Ranks& ranks = *ranks_[first];
    const std::unique_lock<std::mutex> turn = ranks.turn();
    std::memcpy(ranks.room(sizeof now), &now, sizeof now);
    ranks.post(Ranks::Kind::Message, 0, sizeof now);
    ranks.wait();
  }

  void follow(int number) {
    Ranks& own = *ranks_[number];
    follow_first_rank(own, [&](const Ranks::Posted& posted) {
      if (posted.program != programs_[number]) throw std::runtime_error("it has no such program");
      if (posted.kind == Ranks::Kind::Copy) copy(number, read_copy(posted));
      else share(read_step(posted, own), number);
    }, versions[number]);
  }

  void lead_node(int number) {
    const int node = number / per_node_;
    FrameLink link(their_steps_[node]);
    Program program(
        stride(), *ranks_[number],
        [&](const StepInputs& in) {
          lead_step(in, programs_[number], *ranks_[number], [&] { share(in, number); });
        },
        [&](const BlockCopy& given) { copy_in_ranks(number, given, [] {}); });
    for (;;) {
      const FrameLink::Frame frame = follow_first_node(link, program, node * kPieces, kPieces);
      if (frame.kind != FrameLink::Kind::Message || frame.content.size() != sizeof(uint64_t))
        throw std::runtime_error("a frame that is no message");
      std::memcpy(&versions[number], frame.content.data(), sizeof(uint64_t));
      send_to_ranks(number, static_cast<uint64_t>(versions[number]));
    }
  }

  // This rank's share. The others of its machine wait in a sum for what it cannot compute.
  void share(const StepInputs& in, int number) {
    try {
      std::vector<uint64_t> states;
      for (int row = 0; row < in.num_rows; ++row)
        states.push_back(static_cast<uint64_t>(in.token_ids[row]) + 1);
      for (int layer = 0; layer < kLayers; ++layer) {
        if (layer == 1) note_share(number);
        read_layer(in, number, layer, states);
        add_up(number, states);
      }
      write_logits(in, number, states);
    } catch (const std::exception& error) {
      ranks_[number]->end(ranks_[number]->name() + ": " + error.what());
      throw;
    }
  }

  // Keeps what has come of each row, and finds its next state in all that its sequence has kept.
  void read_layer(const StepInputs& in, int number, int layer, std::vector<uint64_t>& states) {
    const Blocks blocks = blocks_of(number, layer);
    for (int row = 0; row < in.num_rows; ++row) {
      sim::point();
      blocks.at(in, sequence_of(in, row), in.positions[row]) = {
          states[row], static_cast<uint64_t>(in.positions[row])};
    }
    for (int row = 0; row < in.num_rows; ++row) {
      const uint64_t found = read_back(in, blocks, sequence_of(in, row), in.positions[row]);
      states[row] = layer == 0 ? found : mix(states[row], found);
    }
  }

  // Adds the parts of all ranks up: each has its own pieces of each state.
  void add_up(int number, std::vector<uint64_t>& states) {
    NodeSums& sums = *sums_[number];
    const bool is_old = number > 0 && versions[number] != version;
    for (size_t first = 0; first < states.size(); first += kRowsAtOnce) {
      const size_t last = std::min(states.size(), first + kRowsAtOnce);
      const size_t floats = (last - first) * kPieces;
      float* own = sums.own(0, 0);
      for (size_t row = first; row < last; ++row)
        for (int piece = 0; piece < kPieces; ++piece) {
          sim::point();
          const uint64_t state = is_old ? ~states[row] : states[row];
          *own++ = piece % members_ == number ? piece_of(state, piece) : 0.0f;
        }
      sums.meet(0, floats, floats);
      for (size_t row = first; row < last; ++row) {
        float found[kPieces] = {};
        for (int rank = 0; rank < sums.count(); ++rank) {
          sim::point();
          const float* part = sums.of(rank, 0, 0) + (row - first) * kPieces;
          for (int piece = 0; piece < kPieces; ++piece) found[piece] += part[piece];
        }
        states[row] = state_of(found);
      }
    }
  }

  // Each node has columns of its own, in which each of its ranks has its pieces.
  void write_logits(const StepInputs& in, int number, const std::vector<uint64_t>& states) {
    const int node = number / per_node_;
    for (int row = 0; row < in.num_logits; ++row) {
      float* to = in.logits_out + row * stride() + node * kPieces;
      for (int piece = 0; piece < kPieces; ++piece) {
        sim::point();
        const int owner = piece % members_;
        if (owner == number) to[piece] = piece_of(states[in.logits_rows[row]], piece);
        else if (owner / per_node_ != node && number % per_node_ == 0) to[piece] = 0.0f;
      }
    }
  }

  const int nodes_, per_node_;
  std::vector<std::shared_ptr<FrameLink>> steps_;  // of node 0, to each other one
  std::vector<int> their_steps_, their_parts_;
  std::vector<NodeSums::Links> parts_;  // of each node
  std::vector<std::shared_ptr<Ranks>> ranks_;
  std::vector<uint32_t> programs_;
  std::vector<std::unique_ptr<NodeSums>> sums_;
  std::vector<std::vector<std::vector<Cell>>> cells_;  // of each rank and layer
  std::unique_ptr<FurtherNodes> further_;
  Pages results_;
  std::deque<std::vector<uint64_t>> found_;  // of each step in flight
};

}  // namespace

std::unique_ptr<Group> make_sum_group(int members, int nodes, int blocks, int block_size,
                                      uint64_t seed, const sim::Weather& weather) {
  return std::make_unique<SumGroup>(members, nodes, blocks, block_size, seed, weather);
}

}  // namespace octavo
