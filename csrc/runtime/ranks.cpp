// The ranks of an engine: the memory that they share, and how they wait for each other.
#include "runtime/ranks.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>

#include "runtime/platform.h"
#include "runtime/waiting.h"

namespace octavo {

namespace {

constexpr size_t kMostReason = 500;
// In a word that counts: the group has ended.
constexpr uint32_t kEnded = uint32_t{1} << 31;

// Counts one more, so that the bit that ends the group stays as it is.
uint32_t count_one(std::atomic<uint32_t>& word) {
  uint32_t now = word.load(), then;
  do then = ((now + 1) & ~kEnded) | (now & kEnded);
  while (!word.compare_exchange_weak(now, then));
  return then;
}

void end_word(std::atomic<uint32_t>& word) {
  word.fetch_or(kEnded);
  wake_all(word, Sleepers::OfAll);
}

}  // namespace

// Each word on a line of its own: the writes of some must not disturb those that watch another.
struct Ranks::Header {
  alignas(64) std::atomic<uint32_t> posted;  // counts
  alignas(64) std::atomic<uint32_t> asleep;  // others that sleep until something is posted
  alignas(64) std::atomic<uint32_t> finished;  // counts, of all others together
  alignas(64) std::atomic<uint32_t> waiting;   // the first, if it sleeps until all have finished
  // Of what is posted.
  alignas(64) std::atomic<uint32_t> threads;  // of each rank, by the first to come
  Kind kind;
  uint32_t program;
  uint64_t offset, bytes;
  uint64_t used;  // of the memory that all have at the same place
  alignas(64) std::atomic<uint32_t> has_reason;
  char reason[kMostReason + 1];
};

Ranks::Ranks(int descriptor, size_t bytes, int rank, int ranks, int threads)
    : rank_(rank),
      ranks_(ranks),
      threads_(threads),
      memory_(map_shared(descriptor, bytes),
              [bytes](uint8_t* pages) { if (pages) unmap_pages(pages, bytes); }),
      used_(rounded(sizeof(Header) + Barrier::bytes_for(ranks * threads), kSmallPage)),
      begin_(bytes / kHugePage * kHugePage),
      barrier_(ranks * threads, memory_ ? memory_.get() + sizeof(Header) : throw std::bad_alloc()) {
  static_assert(sizeof(Header) % alignof(Header) == 0);
  if (rank < 0 || rank >= ranks || threads < 1 || used_ > begin_)
    throw std::invalid_argument("a rank must be one of its group, and the group needs memory");
  uint32_t others = 0;  // what the first to come has said, whichever that is
  if (!header().threads.compare_exchange_strong(others, threads) &&
      others != static_cast<uint32_t>(threads))
    throw std::invalid_argument("rank " + std::to_string(rank) + " has " + std::to_string(threads) +
                                " threads, and another one " + std::to_string(others));
}

Pages Ranks::part(uint64_t offset, size_t bytes, bool huge) const {
  if (huge) prefer_huge_pages(at(offset), bytes);
  return Pages(at(offset), bytes, memory_);
}

Pages Ranks::same(size_t bytes, bool huge) {
  if (bytes == 0) return Pages();
  const size_t page = huge ? kHugePage : kSmallPage;
  const std::lock_guard<std::mutex> lock(taking_);
  const uint64_t first = rounded(used_, page);
  bytes = rounded(bytes, page);
  if (first + bytes > begin_) throw std::bad_alloc();
  used_ = first + bytes;
  return part(first, bytes, huge);
}

Pages Ranks::own(size_t bytes, bool huge) {
  if (bytes == 0) return Pages();
  const size_t page = huge ? kHugePage : kSmallPage;
  bytes = rounded(bytes, page);
  const std::lock_guard<std::mutex> lock(taking_);
  if (bytes > begin_ || (begin_ - bytes) / page * page < used_) throw std::bad_alloc();
  begin_ = (begin_ - bytes) / page * page;
  return part(begin_, bytes, huge);
}

Pages Ranks::lend(size_t bytes, bool huge) {
  if (bytes == 0) return Pages();
  bytes = rounded(bytes, kSmallPage);
  uint64_t place = returned_->take(bytes);
  if (place == 0) place = offset_of(own(bytes, false).data());
  if (huge) prefer_huge_pages(at(place), bytes);
  const int process = process_id();
  const auto give_back = [memory = memory_, returned = returned_, place, bytes,
                          process](uint8_t* pages) {
    if (process_id() != process) return;  // a forked one, whose parent still reads them
    clear_shared(pages, bytes);
    returned->give_back(place, bytes);
  };
  return Pages(at(place), bytes, std::shared_ptr<uint8_t>(at(place), give_back));
}

uint64_t Ranks::Returned::take(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto best = places.end();
  for (auto each = places.begin(); each != places.end(); ++each)
    if (each->second >= bytes && (best == places.end() || each->second < best->second)) best = each;
  if (best == places.end()) return 0;
  const auto [place, found] = *best;
  places.erase(best);
  if (found > bytes) places.emplace(place + bytes, found - bytes);
  return place;
}

void Ranks::Returned::give_back(uint64_t place, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto after = places.lower_bound(place);
  if (after != places.end() && place + bytes == after->first) {
    bytes += after->second;
    after = places.erase(after);
  }
  if (after != places.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == place) {
      before->second += bytes;
      return;
    }
  }
  places.emplace(place, bytes);
}

uint8_t* Ranks::room(size_t bytes) {
  if (bytes > room_.bytes()) room_ = own(std::max(bytes, 2 * room_.bytes()), false);
  return room_.data();
}

void Ranks::post(Kind kind, uint32_t program, size_t bytes) {
  if (has_ended()) raise();
  Header& posted = header();
  posted.kind = kind;
  posted.program = program;
  posted.offset = bytes ? offset_of(room_.data()) : 0;
  posted.bytes = bytes;
  posted.used = used_;
  seen_ = count_one(posted.posted) & ~kEnded;
  if (posted.asleep.load() > 0) wake_all(posted.posted, Sleepers::OfAll);
}

void Ranks::wait() {
  Header& posted = header();
  const uint32_t all = seen_ * static_cast<uint32_t>(ranks_ - 1) & ~kEnded;
  const uint32_t now =
      wait_between_steps(posted.finished, posted.waiting, Sleepers::OfAll,
                         [all](uint32_t word) { return word == all || (word & kEnded); });
  if (now & kEnded) raise();
}

Ranks::Posted Ranks::next() {
  Header& posted = header();
  const uint32_t now = wait_between_steps(posted.posted, posted.asleep, Sleepers::OfAll,
                                          [seen = seen_](uint32_t word) { return word != seen; });
  if (now & kEnded) raise();
  seen_ = now;
  if (posted.used != used_) {
    end(name() + " has other sizes than the first one");
    raise();
  }
  return {posted.kind, posted.program, at(posted.offset), posted.bytes};
}

void Ranks::finish() {
  Header& posted = header();
  count_one(posted.finished);
  if (posted.waiting.load() > 0) wake_all(posted.finished, Sleepers::OfAll);
}

std::string Ranks::name() const { return "rank " + std::to_string(rank_) + " of its machine"; }

void Ranks::end(const std::string& reason) {
  Header& posted = header();
  uint32_t none = 0;
  if (posted.has_reason.compare_exchange_strong(none, 1)) {
    const size_t size = std::min(reason.size(), kMostReason);
    std::memcpy(posted.reason, reason.data(), size);
    posted.has_reason.store(2);
  }
  barrier_.abandon();
  for (const std::function<void()>& call : at_end_) call();
  end_word(posted.posted);
  end_word(posted.finished);
}

bool Ranks::has_ended() const { return header().has_reason.load() != 0; }

std::string Ranks::reason() const {
  const Header& posted = header();
  if (posted.has_reason.load() != 2) return "";
  return std::string(posted.reason, strnlen(posted.reason, kMostReason));
}

void Ranks::raise() const {
  const std::string why = reason();
  throw std::runtime_error(why.empty() ? "a rank has ended" : why);
}

}  // namespace octavo
