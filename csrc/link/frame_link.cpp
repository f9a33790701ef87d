// A connection to another process, over which frames go.
#include "link/frame_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace octavo {

namespace {

constexpr uint32_t kMagic = 0x4F637431;  // of this form of frames, in this order of bytes
constexpr uint64_t kMostBytes = uint64_t{1} << 30;
// A frame is sealed in parts, so that one is sent while the next is sealed, and nothing is kept of
// a part without the right tag.
constexpr size_t kPartBytes = size_t{1} << 16;

#ifdef MSG_NOSIGNAL
constexpr int kFlags = MSG_NOSIGNAL;
#else
constexpr int kFlags = 0;
#endif

[[noreturn]] void throw_ended() {
  throw FrameLink::Ended(std::string("its connection has ended: ") + std::strerror(errno));
}

}  // namespace

FrameLink::FrameLink(int descriptor, std::string_view sending, std::string_view receiving)
    : descriptor_(descriptor),
      seal_(std::make_unique<Sealing>(sending)),
      open_(std::make_unique<Sealing>(receiving)) {}

FrameLink::~FrameLink() { ::close(descriptor_); }

void FrameLink::send(Kind kind, const uint8_t* data, size_t bytes) {
  if (bytes > kMostBytes)
    throw std::runtime_error("a step of " + std::to_string(bytes) + " bytes: stages take " +
                             std::to_string(kMostBytes));
  const std::lock_guard<std::mutex> lock(sending_);
  const Head head{kMagic, kind, sent_++, bytes};
  if (seal_) return send_sealed(head, data);
  send_all(&head, sizeof head);
  send_all(data, bytes);
}

FrameLink::Frame FrameLink::receive() {
  Head head;
  open_ ? receive_sealed(&head, sizeof head) : receive_all(&head, sizeof head);
  if (head.magic != kMagic || head.number != received_ || head.bytes > kMostBytes)
    throw std::runtime_error("what came over the connection is not the frame that should come");
  ++received_;
  Frame frame{head.kind, std::vector<uint8_t>(head.bytes)};
  uint8_t* to = frame.content.data();
  if (!open_) receive_all(to, head.bytes);
  for (size_t at = 0; open_ && at < head.bytes; at += kPartBytes)
    receive_sealed(to + at, std::min<size_t>(kPartBytes, head.bytes - at));
  return frame;
}

void FrameLink::send_sealed(Head head, const uint8_t* data) {
  constexpr size_t tag = Sealing::kTagBytes;
  sealed_.resize(sizeof head + tag + kPartBytes + tag);
  uint8_t* to = sealed_.data();
  const auto add = [&](const void* part, size_t bytes) {
    if (bytes > 0) std::memcpy(to, part, bytes);
    seal_->seal(to, bytes, to + bytes);
    to += bytes + tag;
  };
  add(&head, sizeof head);  // which is sent with the first part
  size_t at = 0;
  do {
    const size_t bytes = std::min<size_t>(kPartBytes, head.bytes - at);
    if (bytes > 0) add(data + at, bytes);
    send_all(sealed_.data(), to - sealed_.data());
    to = sealed_.data();
    at += bytes;
  } while (at < head.bytes);
}

void FrameLink::receive_sealed(void* data, size_t bytes) {
  uint8_t tag[Sealing::kTagBytes];
  receive_all(data, bytes);
  receive_all(tag, sizeof tag);
  if (!open_->open(static_cast<uint8_t*>(data), bytes, tag))
    throw std::runtime_error("what came over the connection was not sealed by its other end");
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
