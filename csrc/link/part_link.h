// A connection to another node, over which parts of sums go, sealed.
//
// Both ends send at the same time, and neither waits until the other reads: what the system does
// not take at once is kept, and sent on by the next turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "link/sealing.h"

namespace octavo {

class PartLink {
 public:
  // Of a part; what says that it has more is no part.
  static constexpr size_t kMostFloats = size_t{1} << 15;

  // Takes the descriptor over, unless it throws; a key for each direction.
  PartLink(int descriptor, std::string_view sending, std::string_view receiving);
  ~PartLink();
  PartLink(const PartLink&) = delete;

  // Adds a rank's part of a sum to what is sent next. All that is added between two turns leaves in
  // one call of the system, if that takes it.
  void put(uint32_t rank, uint64_t sum, const float* data, size_t floats);
  // The part that comes behind those expected before, and where it goes.
  void expect(uint32_t rank, uint64_t sum, float* to, size_t floats);

  // Sends and receives what the system takes and has, without waiting; false if that was nothing.
  // Throws FrameLink::Ended, or std::runtime_error if what comes is not the part that should come.
  bool turn();
  bool is_sending() const { return sent_ < out_.size(); }
  bool is_receiving() const { return !expected_.empty(); }
  // Returns when a turn may move something, the connection has ended, or so long after.
  static void wait(const std::vector<const PartLink*>& links, int milliseconds);

  // Ends the connection in both directions, from any thread: who waits for it is woken.
  void close();

 private:
  struct Head {
    uint32_t magic, rank;
    uint64_t sum, floats;
  };
  struct Expected {
    Head head;
    float* to;
  };

  bool send();
  bool receive();
  bool take();

  const int descriptor_;
  Sealing seal_, open_;
  std::vector<uint8_t> out_;  // sealed
  size_t sent_ = 0;           // of these
  std::vector<uint8_t> in_;   // room for what comes
  size_t begin_ = 0, end_ = 0;  // of what has come and was not taken
  bool has_head_ = false;       // that of the part that is expected next was taken
  std::deque<Expected> expected_;
};

}  // namespace octavo
