// A connection to another process, over which frames go.
#include "runtime/frame_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace octavo {

namespace {

constexpr uint32_t kMagic = 0x4F637431;  // of this form of frames, in this order of bytes
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

#ifdef MSG_NOSIGNAL
constexpr int kFlags = MSG_NOSIGNAL;
#else
constexpr int kFlags = 0;
#endif

[[noreturn]] void throw_ended() {
  throw FrameLink::Ended(std::string("its connection has ended: ") + std::strerror(errno));
}

}  // namespace

FrameLink::~FrameLink() { ::close(descriptor_); }

void FrameLink::send(Kind kind, const uint8_t* data, size_t bytes) {
  if (bytes > kMostBytes)
    throw std::runtime_error("a step of " + std::to_string(bytes) + " bytes: stages take " +
                             std::to_string(kMostBytes));
  const std::lock_guard<std::mutex> lock(sending_);
  const Head head{kMagic, kind, sent_++, bytes};
  send_all(&head, sizeof head);
  send_all(data, bytes);
}

FrameLink::Frame FrameLink::receive() {
  Head head;
  receive_all(&head, sizeof head);
  if (head.magic != kMagic || head.number != received_ || head.bytes > kMostBytes)
    throw std::runtime_error("what came over the connection is not the frame that should come");
  ++received_;
  Frame frame{head.kind, std::vector<uint8_t>(head.bytes)};
  receive_all(frame.content.data(), frame.content.size());
  return frame;
}

void FrameLink::close() { ::shutdown(descriptor_, SHUT_RDWR); }

void FrameLink::send_all(const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(descriptor_, from, bytes, kFlags);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) throw_ended();
    from += sent;
    bytes -= sent;
  }
}

void FrameLink::receive_all(void* data, size_t bytes) {
  auto* to = static_cast<uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(descriptor_, to, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) throw Ended("its connection has ended");
    if (got < 0) throw_ended();
    to += got;
    bytes -= got;
  }
}

}  // namespace octavo
