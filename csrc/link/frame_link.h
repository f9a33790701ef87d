// A connection to another process, over which frames go: a stream socket of any kind. Between
// machines they are sealed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "link/sealing.h"

namespace octavo {

class FrameLink {
 public:
  enum class Kind : uint32_t { Step = 1, Rows, Message, Failure, Copy };
  struct Frame {
    Kind kind = Kind::Message;
    std::vector<uint8_t> content;
  };

  // The other process has ended, or has ended the connection.
  struct Ended : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  // Takes the descriptor over, unless it throws. With a key for each direction frames are sealed.
  explicit FrameLink(int descriptor) : descriptor_(descriptor) {}
  FrameLink(int descriptor, std::string_view sending, std::string_view receiving);
  ~FrameLink();
  FrameLink(const FrameLink&) = delete;

  // Callers in several threads send one after the other. Throws Ended.
  void send(Kind kind, const uint8_t* data, size_t bytes);
  void send(Kind kind, const std::vector<uint8_t>& data) { send(kind, data.data(), data.size()); }
  // Waits for the next frame; throws Ended, or std::runtime_error if what comes is no frame.
  Frame receive();
  // Ends the connection in both directions: who waits for it, in any thread, is woken.
  void close();

 private:
  struct Head {
    uint32_t magic;
    Kind kind;
    uint64_t number;  // of all frames in this direction
    uint64_t bytes;
  };

  void send_all(const void* data, size_t bytes);
  void receive_all(void* data, size_t bytes);
  void send_sealed(Head head, const uint8_t* data);
  void receive_sealed(void* data, size_t bytes);

  const int descriptor_;
  std::unique_ptr<Sealing> seal_, open_;  // none: both ends are on this machine
  std::vector<uint8_t> sealed_;           // what is sent next
  std::mutex sending_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

}  // namespace octavo
