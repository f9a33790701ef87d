// The operating system's functions that the engine uses.
#include "runtime/platform.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

// OCTAVO_PORTABLE builds the other systems' code on Linux, to test it.
#if defined(__linux__) && !defined(OCTAVO_PORTABLE)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cerrno>
#include <climits>
#include <fstream>
#include <set>
#include <string>
#include <vector>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace octavo {

#if defined(__linux__) && !defined(OCTAVO_PORTABLE)

void sleep_while(std::atomic<uint32_t>& word, uint32_t value, Sleepers whose) {
  const int operation = whose == Sleepers::OfAll ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word, Sleepers whose) {
  const int operation = whose == Sleepers::OfAll ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, INT_MAX, nullptr, nullptr, 0);
}

void pin_thread(std::thread& thread, int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  pthread_setaffinity_np(thread.native_handle(), sizeof one, &one);  // a failure does no harm
}

// Sets of 1,024 processors each: as many as the largest kernels have by far.
constexpr size_t kMostCpuSets = 64;

std::vector<int> physical_cores() {
  // A set that is smaller than the kernel's is refused.
  std::vector<cpu_set_t> allowed(1);
  while (sched_getaffinity(0, allowed.size() * sizeof(cpu_set_t), allowed.data()) != 0) {
    if (errno != EINVAL || allowed.size() >= kMostCpuSets) return {0};
    allowed.assign(2 * allowed.size(), {});
  }
  const size_t bytes = allowed.size() * sizeof(cpu_set_t);
  std::vector<int> cores;
  std::set<std::string> seen;
  for (size_t processor = 0; processor < 8 * bytes; ++processor) {
    if (!CPU_ISSET_S(processor, bytes, allowed.data())) continue;
    const std::string path = "/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                             "/topology/thread_siblings_list";
    std::string siblings;
    std::ifstream(path) >> siblings;
    if (siblings.empty()) siblings = "alone " + std::to_string(processor);
    if (seen.insert(siblings).second) cores.push_back(static_cast<int>(processor));
  }
  return cores.empty() ? std::vector<int>{0} : cores;
}

bool permit_tile_registers() {
#ifdef SYS_arch_prctl  // only x86 has it
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#else

void sleep_while(std::atomic<uint32_t>& word, uint32_t value, Sleepers whose) {
  // The library wakes threads of its own process alone; the others look again by themselves.
  if (whose == Sleepers::OfAll)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  else
    word.wait(value);
}

void wake_all(std::atomic<uint32_t>& word, Sleepers) { word.notify_all(); }

void pin_thread(std::thread&, int) {}

std::vector<int> physical_cores() {
  std::vector<int> cores(std::max(1u, std::thread::hardware_concurrency()));
  for (size_t core = 0; core < cores.size(); ++core) cores[core] = static_cast<int>(core);
  return cores;
}

bool permit_tile_registers() { return false; }

#endif

#if defined(__linux__) && defined(__aarch64__)

ArmFeatures arm_features() {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  return {(first & HWCAP_ASIMDDP) != 0, (second & HWCAP2_I8MM) != 0, (second & HWCAP2_BF16) != 0};
}

#else

ArmFeatures arm_features() { return {}; }

#endif

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int process_id() { return static_cast<int>(getpid()); }

uint8_t* map_pages(size_t bytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<uint8_t*>(pages);
}

void unmap_pages(uint8_t* pages, size_t bytes) { munmap(pages, bytes); }

uint8_t* map_shared(int descriptor, size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<uint8_t*>(pages);
}

void clear_shared(uint8_t* pages, size_t bytes) {
#ifdef MADV_REMOVE
  if (madvise(pages, bytes, MADV_REMOVE) == 0) return;
#endif
  std::memset(pages, 0, bytes);
}

void prefer_huge_pages([[maybe_unused]] uint8_t* pages, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(pages, bytes, MADV_HUGEPAGE);
#endif
}

void forget_cached([[maybe_unused]] const uint8_t* data, [[maybe_unused]] size_t bytes) {
  constexpr size_t kLine = 64;  // the shortest line of these processors
  for (size_t at = 0; at < bytes; at += kLine) {
#if defined(__x86_64__)
    __builtin_ia32_clflush(data + at);
#elif defined(__aarch64__)
    __asm__ volatile("dc civac, %0" ::"r"(data + at) : "memory");
#endif
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void drop_file_pages(const uint8_t* data, size_t bytes) {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace octavo
