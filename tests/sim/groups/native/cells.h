// What members of a simulated group keep of each position, and the number that follows from it.
#pragma once

#include <cstdint>

#include "machine.h"
#include "program/step.h"

namespace octavo {

inline uint64_t mix(uint64_t state, uint64_t more) {
  state = (state ^ more) * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03;
  return state ^ state >> 29;
}

// What is kept of each position: its content, and where it belongs.
struct Cell {
  uint64_t content, position;
};

// The blocks of one cache, and what a copy of one of them does.
struct Blocks {
  Cell* cells = nullptr;
  int block_size = 1;

  Cell& at(const StepInputs& in, int sequence, int position) const {
    const int32_t block = in.tables[0][sequence * in.table_width + position / block_size];
    return cells[int64_t{block} * block_size + position % block_size];
  }
  void copy(int64_t source, int64_t destination) const {
    for (int at = 0; at < block_size; ++at) {
      sim::point();
      cells[destination * block_size + at] = cells[source * block_size + at];
    }
  }
};

inline int sequence_of(const StepInputs& in, int row) {
  int sequence = 0;
  while (row >= in.row_starts[sequence + 1]) ++sequence;
  return sequence;
}

// The number that follows from all that a sequence has in its blocks up to a position.
inline uint64_t read_back(const StepInputs& in, const Blocks& blocks, int sequence, int position) {
  uint64_t state = 17;
  for (int at = 0; at <= position; ++at) {
    const Cell& cell = blocks.at(in, sequence, at);
    state = mix(state, cell.content);
    if (cell.position != static_cast<uint64_t>(at)) state = mix(state, 0xBAD);
  }
  return state;
}

}  // namespace octavo
