// A simulated machine.
#include "machine.h"

#include <sys/mman.h>

#include <limits>

#include "runtime/platform.h"

namespace sim {

namespace {

constexpr size_t kStack = 256 << 10;
constexpr double kPointSeconds = 2e-6;  // long, so that few turns pass until one sleeps
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kHead = 24;  // of a frame: magic, kind, number, bytes
// Polls of a process that bring nothing, one after the other, until it does not poll by itself: a
// group in which all do would go on for ever.
constexpr int kMostIdlePolls = 3;

// The mappings of shared memory, by which a word has one name in all processes.
struct Mapping {
  const uint8_t* begin;
  size_t bytes;
};
std::vector<Mapping> mappings;

const void* name_of(const void* word) {
  const auto* at = static_cast<const uint8_t*>(word);
  for (const Mapping& each : mappings)
    if (at >= each.begin && at < each.begin + each.bytes)
      return reinterpret_cast<const void*>(at - each.begin + 1);
  return word;
}

}  // namespace

Machine* machine = nullptr;

void point() {
  if (machine) machine->point();
}

Process& Machine::start(std::function<void()> work) {
  processes.emplace_back();
  sockets_of.emplace_back();
  Process& process = processes.back();
  process.work = std::move(work);
  process.stack = std::make_unique<uint8_t[]>(kStack);
  process.until = now;
  return process;
}

std::pair<int, int> Machine::connect(bool is_sealed) {
  const int first = first_socket + static_cast<int>(sockets_.size());
  sockets_.emplace_back().peer = first + 1;
  sockets_.emplace_back().peer = first;
  socket(first).is_sealed = socket(first + 1).is_sealed = is_sealed;
  return {first, first + 1};
}

bool Machine::can_run(const Process& process) const { return runs_at(process) <= now; }

double Machine::runs_at(const Process& process) const {
  switch (process.state) {
    case Process::State::Ready:
      return process.until;
    case Process::State::Asleep:
      return kNever;
    case Process::State::Receiving: {
      const Socket& from = socket(process.socket);
      if (!from.arriving.empty()) return std::max(process.until, from.arriving.front().at);
      return from.has_ended || from.is_shut ? process.until : kNever;
    }
    case Process::State::Sending: {
      const Socket& to = socket(process.socket);
      return to.has_ended || to.is_shut ? process.until : kNever;
    }
    case Process::State::Polling:
      return poll_ends_at(process);
    default:
      return kNever;
  }
}

double Machine::poll_ends_at(const Process& process) const {
  double at = process.idle_polls < kMostIdlePolls ? process.polled_until : kNever;
  for (const pollfd& each : process.polled) {
    const Socket& own = socket(each.fd);
    if (events_of(each)) return process.until;
    if ((each.events & POLLIN) && !own.arriving.empty())
      at = std::min(at, std::max(process.until, own.arriving.front().at));
  }
  return at;
}

// What a poll finds now.
short Machine::events_of(const pollfd& polled) const {
  const Socket& own = socket(polled.fd);
  if (own.is_shut || (own.has_ended && own.arriving.empty())) return POLLHUP;
  const bool has_some = !own.arriving.empty() && own.arriving.front().at <= now;
  const int found = (has_some ? POLLIN : 0) | (own.is_full ? 0 : POLLOUT);
  return static_cast<short>(polled.events & found);
}

bool Machine::turn(double until, bool waits) {
  std::vector<Process*> ready;
  double next = kNever;
  for (Process& each : processes) {
    if (can_run(each)) ready.push_back(&each);
    next = std::min(next, runs_at(each));
  }
  if (!ready.empty()) {
    resume(*ready[draw(0, static_cast<int64_t>(ready.size()) - 1)]);
    return true;
  }
  if (next > until || next == kNever) {
    if (waits && until != kNever) now = std::max(now, until);
    return false;
  }
  now = next;
  return true;
}

bool Machine::run(Process& process, double until) {
  while (process.is_alive() && now <= until)
    if (!turn(until)) break;
  return !process.is_alive();
}

void Machine::run_all(double until) {
  while (now <= until)
    if (!turn(until)) break;
}

void Machine::settle(double seconds) {
  const double until = now + seconds;
  while (now <= until)
    if (!turn(until, false)) break;
}

void Machine::begin() {
  Machine& here = *machine;
  Process& process = *here.running_;
  try {
    process.work();
  } catch (const std::exception& error) {
    process.failure = error.what();
  }
  process.state = Process::State::Ended;
  here.leave();
}

void Machine::resume(Process& process) {
  process.state = Process::State::Ready;
  running_ = &process;
  machine = this;
  if (_setjmp(main_) == 0) {
    if (process.has_begun) _longjmp(process.place, 1);
    process.has_begun = true;
    getcontext(&process.first);
    process.first.uc_stack.ss_sp = process.stack.get();
    process.first.uc_stack.ss_size = kStack;
    process.first.uc_link = nullptr;
    makecontext(&process.first, &Machine::begin, 0);
    setcontext(&process.first);
  }
  running_ = nullptr;
}

// Lets another process run; returns when this one runs again.
void Machine::leave() {
  if (_setjmp(running_->place) == 0) _longjmp(main_, 1);
}

void Machine::point() {
  if (!running_) return;
  now += kPointSeconds;
  if (running_->points_to_live == 0) {
    kill(*running_);
    leave();
  }
  if (running_->points_to_live > 0) --running_->points_to_live;
  const double drawn = chance();
  if (drawn < weather.late) {
    running_->until = now + chance() * weather.longest_late;
    leave();
  } else if (drawn > 0.5) {
    leave();
  }
}

void Machine::kill(Process& process) {
  if (!process.is_alive()) return;
  process.state = Process::State::Dead;
  for (size_t at = 0; at < processes.size(); ++at) {
    if (&processes[at] != &process) continue;
    for (const int descriptor : sockets_of[at]) {
      Socket& own = socket(descriptor);
      if (!own.unsent.empty()) {  // a part of a frame may have gone before the end
        own.unsent.resize(draw(0, static_cast<int64_t>(own.unsent.size())));
        socket(own.peer).arriving.push_back({now, std::move(own.unsent)});
      }
      shut(descriptor);
    }
  }
}

void Machine::shut(int descriptor) {
  socket(descriptor).is_shut = true;
  socket(socket(descriptor).peer).has_ended = true;
}

void Machine::sleep_on(const void* word) {
  running_->state = Process::State::Asleep;
  running_->word = name_of(word);
  if (chance() < 0.1) {  // it may wake without a reason
    running_->state = Process::State::Ready;
    running_->until = now + chance() * 0.001;
  }
  leave();
}

void Machine::wake(const void* word) {
  for (Process& each : processes)
    if (each.state == Process::State::Asleep && each.word == name_of(word)) {
      each.state = Process::State::Ready;
      each.until = now + chance() * 0.0005;
    }
}

ssize_t Machine::send(int descriptor, const uint8_t* data, size_t bytes, bool waits) {
  point();
  Socket& own = socket(descriptor);
  if (!waits && !own.is_shut && !own.has_ended && (own.is_full || chance() < 0.1)) {
    errno = EAGAIN;
    return -1;
  }
  while (own.is_full && !own.is_shut && !own.has_ended) {
    running_->state = Process::State::Sending;
    running_->socket = descriptor;
    leave();
  }
  if (own.is_shut || own.has_ended) {
    errno = EPIPE;
    return -1;
  }
  if (chance() < 0.05) {
    errno = EINTR;
    return -1;
  }
  if (bytes > 1 && chance() < 0.3) bytes = draw(1, static_cast<int64_t>(bytes) - 1);
  running_->idle_polls = 0;
  if (own.is_sealed) {
    transmit(own, {data, data + bytes});
    return static_cast<ssize_t>(bytes);
  }
  own.unsent.insert(own.unsent.end(), data, data + bytes);
  while (own.unsent.size() >= kHead) {
    uint64_t length;
    std::memcpy(&length, own.unsent.data() + 16, sizeof length);
    if (own.unsent.size() < kHead + length) break;
    const auto end = own.unsent.begin() + static_cast<ptrdiff_t>(kHead + length);
    std::vector<uint8_t> frame(own.unsent.begin(), end);
    own.unsent.erase(own.unsent.begin(), end);
    transmit(own, std::move(frame));
  }
  return static_cast<ssize_t>(bytes);
}

void Machine::transmit(Socket& from, std::vector<uint8_t> frame) {
  Socket& to = socket(from.peer);
  to.last_arrival = std::max(to.last_arrival, now + chance() * weather.longest_delay);
  const double drawn = chance();
  const bool is_lost = drawn < weather.lost;
  const bool is_repeated = !is_lost && drawn < weather.lost + weather.repeated;
  const bool is_broken = chance() < weather.broken;
  num_faults += is_lost + is_repeated + is_broken;
  if (is_lost) return;
  if (is_broken) {
    const int64_t last = static_cast<int64_t>(frame.size()) - 1;
    const int64_t at = from.is_sealed ? draw(0, last) : draw(0, 1) ? draw(0, 3) : draw(8, 15);
    frame[at] ^= uint8_t(1) << draw(0, 7);
  }
  to.arriving.push_back({to.last_arrival, frame});
  if (is_repeated) to.arriving.push_back({to.last_arrival, frame});
}

ssize_t Machine::receive(int descriptor, uint8_t* data, size_t bytes, bool waits) {
  point();
  Socket& own = socket(descriptor);
  if (chance() < 0.05) {
    errno = EINTR;
    return -1;
  }
  while (own.arriving.empty() || own.arriving.front().at > now) {
    if (own.is_shut || (own.has_ended && own.arriving.empty())) return 0;
    if (!waits) {
      errno = EAGAIN;
      return -1;
    }
    running_->state = Process::State::Receiving;
    running_->socket = descriptor;
    leave();
  }
  running_->idle_polls = 0;
  std::vector<uint8_t>& first = own.arriving.front().bytes;
  size_t count = std::min(bytes, first.size());
  if (count > 1 && chance() < 0.3) count = draw(1, static_cast<int64_t>(count) - 1);
  std::memcpy(data, first.data(), count);
  first.erase(first.begin(), first.begin() + static_cast<ptrdiff_t>(count));
  if (first.empty()) own.arriving.pop_front();
  return static_cast<ssize_t>(count);
}

int Machine::poll(pollfd* these, size_t count, int milliseconds) {
  point();
  running_->polled.assign(these, these + count);
  running_->polled_until = now + milliseconds / 1000.0;
  const auto found = [&] {
    return std::any_of(these, these + count, [&](const pollfd& each) { return events_of(each); });
  };
  if (!found()) {
    running_->state = Process::State::Polling;
    leave();
  }
  if (found()) return 1;
  ++running_->idle_polls;
  return 0;
}

}  // namespace sim

// What the code under test calls; the linker leads it here (--wrap).
extern "C" {

ssize_t __real_send(int descriptor, const void* data, size_t bytes, int flags);
ssize_t __real_recv(int descriptor, void* data, size_t bytes, int flags);
int __real_shutdown(int descriptor, int how);
int __real_close(int descriptor);
int __real_sched_yield(void);
int __real_poll(pollfd* these, nfds_t count, int milliseconds);

ssize_t __wrap_send(int descriptor, const void* data, size_t bytes, int flags) {
  if (!sim::machine || !sim::machine->has(descriptor))
    return __real_send(descriptor, data, bytes, flags);
  const bool waits = !(flags & MSG_DONTWAIT);
  return sim::machine->send(descriptor, static_cast<const uint8_t*>(data), bytes, waits);
}

ssize_t __wrap_recv(int descriptor, void* data, size_t bytes, int flags) {
  if (!sim::machine || !sim::machine->has(descriptor))
    return __real_recv(descriptor, data, bytes, flags);
  const bool waits = !(flags & MSG_DONTWAIT);
  return sim::machine->receive(descriptor, static_cast<uint8_t*>(data), bytes, waits);
}

int __wrap_shutdown(int descriptor, int how) {
  if (!sim::machine || !sim::machine->has(descriptor)) return __real_shutdown(descriptor, how);
  sim::machine->shut(descriptor);
  return 0;
}

int __wrap_close(int descriptor) {
  if (!sim::machine || !sim::machine->has(descriptor)) return __real_close(descriptor);
  sim::machine->shut(descriptor);
  return 0;
}

int __wrap_poll(pollfd* these, nfds_t count, int milliseconds) {
  if (!sim::machine || count == 0 || !sim::machine->has(these[0].fd))
    return __real_poll(these, count, milliseconds);
  return sim::machine->poll(these, count, milliseconds);
}

int __wrap_sched_yield(void) {
  sim::point();
  return 0;
}

// std::chrono::steady_clock::now()
std::chrono::steady_clock::time_point __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  const double now = sim::machine ? sim::machine->now : 0;
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<int64_t>(now * 1e9)));
}
}

namespace octavo {

void sleep_while(std::atomic<uint32_t>& word, uint32_t value, Sleepers) {
  sim::point();
  if (word.now() == value) sim::machine->sleep_on(&word);
}

void wake_all(std::atomic<uint32_t>& word, Sleepers) {
  sim::point();
  sim::machine->wake(&word);
}

uint8_t* map_pages(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<uint8_t*>(pages);
}

void unmap_pages(uint8_t* pages, size_t bytes) {
  for (size_t at = 0; at < sim::mappings.size(); ++at)
    if (sim::mappings[at].begin == pages) {
      sim::mappings.erase(sim::mappings.begin() + static_cast<ptrdiff_t>(at));
      break;
    }
  munmap(pages, bytes);
}

uint8_t* map_shared(int descriptor, size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (pages == MAP_FAILED) return nullptr;
  sim::mappings.push_back({static_cast<uint8_t*>(pages), bytes});
  return static_cast<uint8_t*>(pages);
}

void clear_shared(uint8_t* pages, size_t bytes) { std::memset(pages, 0, bytes); }

}  // namespace octavo
