// A simulated machine: processes that take turns, their sleep, and the connections between them.
//
// A process is a stack of its own in this process, and one of them runs at a time. Which one, for
// how long, and who is late follows from a seed. Time passes only here.
#pragma once

#include <poll.h>
#include <setjmp.h>
#include <ucontext.h>

#include <deque>
#include <memory>
#include <random>

#include "prelude.h"

namespace sim {

// How often the machine does what machines do rarely; each a chance.
struct Weather {
  double late = 0;      // at a turn, a process is not run for a while
  double lost = 0;      // a frame does not arrive
  double repeated = 0;  // a frame arrives twice
  double broken = 0;    // the head of a frame has another bit
  double longest_late = 0;
  double longest_delay = 0;  // of a frame
};

struct Process {
  enum class State { Ready, Asleep, Receiving, Sending, Polling, Ended, Dead };
  State state = State::Ready;
  double until = 0;                // not run before
  const void* word = nullptr;      // on which it sleeps
  int socket = -1;                 // from which it receives, or which takes nothing now
  std::vector<pollfd> polled;      // what it waits for, until `polled_until` at most
  double polled_until = 0;
  int idle_polls = 0;              // that have brought nothing, one after the other
  int64_t points_to_live = -1;     // then it dies; -1: it lives
  std::string failure;             // why its work has ended
  std::function<void()> work;
  std::unique_ptr<uint8_t[]> stack;
  ucontext_t first;
  jmp_buf place;
  bool has_begun = false;

  bool is_alive() const { return state != State::Ended && state != State::Dead; }
};

struct Chunk {
  double at = 0;
  std::vector<uint8_t> bytes;
};

struct Socket {
  int peer = -1;
  std::deque<Chunk> arriving;
  double last_arrival = 0;
  std::vector<uint8_t> unsent;  // of a frame that is not whole
  bool is_sealed = false;       // where a frame ends does not show on its way
  bool is_full = false;         // it takes nothing, since the other end reads nothing
  bool is_shut = false;         // this end
  bool has_ended = false;       // the other one
};

class Machine {
 public:
  Machine(uint64_t seed, const Weather& weather) : random(seed), weather(weather) {}

  Process& start(std::function<void()> work);
  // Drops the process that was started last.
  void forget_last() {
    processes.pop_back();
    sockets_of.pop_back();
  }
  // Connects two descriptors.
  std::pair<int, int> connect(bool is_sealed = false);
  // Runs the processes until this one has ended, all wait for ever, or the time has come. Returns
  // whether it has ended.
  bool run(Process& process, double until);
  // Runs all until the time has come.
  void run_all(double until);
  // Runs all until none can go on, for so long at most.
  void settle(double seconds);
  void kill(Process& process);
  void shut(int descriptor);
  // Lets what is sent to a process wait from now on.
  void fill(int descriptor) { socket(socket(descriptor).peer).is_full = true; }

  void point();
  void sleep_on(const void* word);
  void wake(const void* word);
  ssize_t send(int descriptor, const uint8_t* data, size_t bytes, bool waits);
  ssize_t receive(int descriptor, uint8_t* data, size_t bytes, bool waits);
  int poll(pollfd* these, size_t count, int milliseconds);
  // Lets those whose polls bring nothing poll again, since something else may have changed.
  void look_again() {
    for (Process& each : processes) each.idle_polls = 0;
  }
  bool has(int descriptor) const { return descriptor >= first_socket; }

  double chance() { return std::uniform_real_distribution<double>(0, 1)(random); }
  int64_t draw(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  }

  double now = 0;
  int num_faults = 0;  // of the connections
  std::mt19937_64 random;
  std::deque<Process> processes;
  std::vector<std::vector<int>> sockets_of;  // of each process, to be closed when it dies

  static constexpr int first_socket = 100'000;

 private:
  bool can_run(const Process& process) const;
  // When it can run again; infinity: never by itself.
  double runs_at(const Process& process) const;
  // Runs a process that can run, or lets time pass until one can; false if none can by then,
  // which then has come if it is waited for.
  bool turn(double until, bool waits = true);
  // When a poll of a process ends.
  double poll_ends_at(const Process& process) const;
  short events_of(const pollfd& polled) const;
  void resume(Process& process);
  void leave();
  void transmit(Socket& from, std::vector<uint8_t> frame);
  Socket& socket(int descriptor) { return sockets_[descriptor - first_socket]; }
  const Socket& socket(int descriptor) const { return sockets_[descriptor - first_socket]; }

  Weather weather;
  std::deque<Socket> sockets_;
  Process* running_ = nullptr;
  jmp_buf main_;

  static void begin();
};

// That whose processes run now.
extern Machine* machine;

}  // namespace sim
