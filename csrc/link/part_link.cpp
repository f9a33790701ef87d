// A connection to another node, over which parts of sums go.
#include "link/part_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "link/frame_link.h"

namespace octavo {

namespace {

constexpr uint32_t kPartMagic = 0x4F635031;  // of this form of parts, in this order of bytes
constexpr size_t kHeadBytes = 24;
constexpr size_t kTag = Sealing::kTagBytes;
// Room for what comes: a part at least.
constexpr size_t kRoom = 2 * (kHeadBytes + kTag + PartLink::kMostFloats * sizeof(float) + kTag);

#ifdef MSG_NOSIGNAL
constexpr int kAtOnce = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
constexpr int kAtOnce = MSG_DONTWAIT;
#endif

// Of a call that has moved nothing: whether it may do so later.
bool must_wait() {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return true;
  throw FrameLink::Ended(std::string("its connection has ended: ") + std::strerror(errno));
}

}  // namespace

PartLink::PartLink(int descriptor, std::string_view sending, std::string_view receiving)
    : descriptor_(descriptor), seal_(sending), open_(receiving), in_(kRoom) {
  static_assert(sizeof(Head) == kHeadBytes);
}

PartLink::~PartLink() { ::close(descriptor_); }

void PartLink::put(uint32_t rank, uint64_t sum, const float* data, size_t floats) {
  const Head head{kPartMagic, rank, sum, floats};
  const size_t bytes = floats * sizeof(float), at = out_.size();
  out_.resize(at + kHeadBytes + kTag + bytes + kTag);
  uint8_t* to = out_.data() + at;
  std::memcpy(to, &head, kHeadBytes);
  seal_.seal(to, kHeadBytes, to + kHeadBytes);
  to += kHeadBytes + kTag;
  std::memcpy(to, data, bytes);
  seal_.seal(to, bytes, to + bytes);
}

void PartLink::expect(uint32_t rank, uint64_t sum, float* to, size_t floats) {
  if (floats > kMostFloats) throw std::invalid_argument("a part of a sum with too many numbers");
  expected_.push_back({{kPartMagic, rank, sum, floats}, to});
}

bool PartLink::turn() {
  const bool has_sent = is_sending() && send();
  return (is_receiving() && receive()) || has_sent;
}

bool PartLink::send() {
  const ssize_t count = ::send(descriptor_, out_.data() + sent_, out_.size() - sent_, kAtOnce);
  if (count < 0 && must_wait()) return false;
  sent_ += count;
  if (!is_sending()) {
    out_.clear();
    sent_ = 0;
  }
  return count > 0;
}

bool PartLink::receive() {
  bool has_taken = false;
  while (is_receiving() && take()) has_taken = true;
  if (!is_receiving()) return true;
  if (begin_ > 0) {
    std::memmove(in_.data(), in_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const ssize_t count = ::recv(descriptor_, in_.data() + end_, in_.size() - end_, kAtOnce);
  if (count == 0) throw FrameLink::Ended("its connection has ended");
  if (count < 0 && must_wait()) return has_taken;
  end_ += count;
  while (is_receiving() && take()) continue;
  return true;
}

// Takes the head or the numbers of the part that is expected next, if they have come as a whole.
bool PartLink::take() {
  const Expected& next = expected_.front();
  const size_t bytes = has_head_ ? next.head.floats * sizeof(float) : kHeadBytes;
  if (end_ - begin_ < bytes + kTag) return false;
  uint8_t* from = in_.data() + begin_;
  if (!open_.open(from, bytes, from + bytes))
    throw std::runtime_error("what came over the connection was not sealed by its other end");
  begin_ += bytes + kTag;
  if (!has_head_) {
    if (std::memcmp(from, &next.head, kHeadBytes) != 0)
      throw std::runtime_error("what came over the connection is not the part that should come");
    has_head_ = true;
    return true;
  }
  std::memcpy(next.to, from, bytes);
  expected_.pop_front();
  has_head_ = false;
  return true;
}

void PartLink::wait(const std::vector<const PartLink*>& links, int milliseconds) {
  std::vector<pollfd> waiting;
  for (const PartLink* each : links) {
    const int events = (each->is_receiving() ? POLLIN : 0) | (each->is_sending() ? POLLOUT : 0);
    if (events) waiting.push_back({each->descriptor_, static_cast<short>(events), 0});
  }
  ::poll(waiting.data(), waiting.size(), milliseconds);
}

void PartLink::close() { ::shutdown(descriptor_, SHUT_RDWR); }

}  // namespace octavo
