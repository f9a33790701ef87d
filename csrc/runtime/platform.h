// The operating system's functions that the engine uses: for threads that sleep and wake, for
// processors and for pages of memory. Linux has its own, which are faster; other systems use those
// of C++20 and POSIX.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace octavo {

// ---- threads ----

// Hints to the processor that this thread waits in a loop.
inline void pause_spinning() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // long enough for the others, unlike `yield`
#else
  std::this_thread::yield();
#endif
}

// Whose threads sleep on a word: those of one process, or of all that map the memory it is in.
enum class Sleepers { OfProcess, OfAll };

// Sleeps while the word has this value; may return early.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, Sleepers whose = Sleepers::OfProcess);
void wake_all(std::atomic<uint32_t>& word, Sleepers whose = Sleepers::OfProcess);

// Keeps the thread on one processor, where the system allows that.
void pin_thread(std::thread& thread, int processor);

// The cores that this process may run on: the number of one processor of each.
std::vector<int> physical_cores();

// The seconds that the calling thread has computed.
double thread_seconds();

// What an ARM processor has beyond the first ARMv8-A; nothing on other processors, and where the
// system is not asked (only Linux is).
struct ArmFeatures {
  bool dot_products = false;   // of four bytes
  bool int8_matrices = false;  // and products of bytes with and without sign
  bool bf16 = false;
};
ArmFeatures arm_features();

int process_id();

// Asks the system to keep the tile registers of AMX for all threads of this process, also for those
// that start later; false if it does not.
bool permit_tile_registers();

// ---- memory ----

// Zeroed pages that take no memory until they are touched; nullptr if the system refuses.
uint8_t* map_pages(size_t bytes);
void unmap_pages(uint8_t* pages, size_t bytes);

// The memory of a descriptor, for reading and writing, as others that map it see it; nullptr if the
// system refuses.
uint8_t* map_shared(int descriptor, size_t bytes);

// Empties whole pages of such memory, for all that map it: they are zeroed, and take no memory
// until they are touched again.
void clear_shared(uint8_t* pages, size_t bytes);

// Asks for huge pages; where the system refuses, small ones serve as well.
void prefer_huge_pages(uint8_t* pages, size_t bytes);

// Drops these bytes from all caches, so that the next read waits for memory; where the processor
// has no such instruction, nothing happens.
void forget_cached(const uint8_t* data, size_t bytes);

// Drops the whole pages of a mapped file inside this range: they are read again when they are
// touched again. Never for memory that does not belong to a file, whose contents would be lost.
void drop_file_pages(const uint8_t* data, size_t bytes);

}  // namespace octavo
