// The system's functions as the simulator has them: in place of csrc/runtime/platform.h.
#pragma once

#include "prelude.h"

namespace octavo {

enum class Sleepers { OfProcess, OfAll };

inline void pause_spinning() { sim::point(); }
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, Sleepers whose = Sleepers::OfProcess);
void wake_all(std::atomic<uint32_t>& word, Sleepers whose = Sleepers::OfProcess);

inline void pin_thread(std::thread&, int) {}
inline std::vector<int> physical_cores() { return {0}; }
inline int process_id() { return 1; }

uint8_t* map_pages(size_t bytes);
void unmap_pages(uint8_t* pages, size_t bytes);
uint8_t* map_shared(int descriptor, size_t bytes);
void clear_shared(uint8_t* pages, size_t bytes);
inline void prefer_huge_pages(uint8_t*, size_t) {}

}  // namespace octavo
