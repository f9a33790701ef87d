// Lets the simulator run between any two operations on atomic words: it is included first in each
// file of ranks and stages, whose code stays as it is.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace sim {

// Another process may run here, or this one may end.
void point();

}  // namespace sim

namespace std {

// `std::atomic` of one simulated machine: its processes take turns, so a plain value is enough.
template <typename T>
class sim_atomic {
 public:
  sim_atomic() = default;
  constexpr sim_atomic(T value) : value_(value) {}

  T load(memory_order = memory_order_seq_cst) const {
    sim::point();
    return value_;
  }
  void store(T value, memory_order = memory_order_seq_cst) {
    sim::point();
    value_ = value;
  }
  T fetch_add(T more, memory_order = memory_order_seq_cst) {
    sim::point();
    return exchange(value_ + more);
  }
  T fetch_sub(T less, memory_order = memory_order_seq_cst) {
    sim::point();
    return exchange(value_ - less);
  }
  T fetch_or(T bits, memory_order = memory_order_seq_cst) {
    sim::point();
    return exchange(value_ | bits);
  }
  bool compare_exchange_strong(T& expected, T value, memory_order = memory_order_seq_cst) {
    sim::point();
    if (value_ != expected) {
      expected = value_;
      return false;
    }
    value_ = value;
    return true;
  }
  bool compare_exchange_weak(T& expected, T value, memory_order order = memory_order_seq_cst) {
    return compare_exchange_strong(expected, value, order);
  }
  // For the simulator itself.
  T now() const { return value_; }

 private:
  T exchange(T value) {
    const T before = value_;
    value_ = value;
    return before;
  }

  T value_{};
};

}  // namespace std

#define atomic sim_atomic
