// The memory of a step's intermediate results: where each buffer of a program is.
//
// Sizes are in bytes a row, since the number of rows changes: a buffer at offset o begins o times
// the capacity of its space after the space's memory. Memory grows with the largest step so far.
#pragma once

#include <cstddef>
#include <cstdint>

#include "program/instruction.h"
#include "program/step.h"
#include "runtime/arena.h"
#include "runtime/team.h"
#include "runtime/workers.h"

namespace octavo {

class Scratch {
 public:
  explicit Scratch(const Team& team) : threads_(team.all()), ranks_(team.ranks()) {}

  void set_row_bytes(Space space, int64_t row_bytes, int64_t prepared_row_bytes);
  // Makes the memory large enough for the step.
  void reserve(const Step& step);
  size_t bytes() const;

  // Bytes of prepared rows that a thread needs for itself.
  size_t private_bytes() const;

  float* at(const Step& step, const Ref& ref, int row) const {
    const int64_t column = row * ref.stride + ref.first;
    switch (ref.where) {
      case Ref::Where::Nothing: return nullptr;
      case Ref::Where::LogitsOut: return step.inputs().logits_out + column;
      case Ref::Where::HiddenOut: return step.inputs().hidden_out + column;
      case Ref::Where::KeptOut: return step.inputs().kept_out[ref.offset] + column;
      case Ref::Where::StateOut: return step.inputs().state_out + column;
      case Ref::Where::Scratch: break;
    }
    const int space = static_cast<int>(ref.space);
    uint8_t* base = pages_[space].data() + ref.offset * capacity_[space];
    return reinterpret_cast<float*>(base) + column;
  }

  // Returns whether every thread prepares these rows for itself: few rows cost less than a barrier.
  bool is_private(const Step& step, const Prepared& prepared) const;
  uint8_t* prepared_at(const Step& step, const Prepared& prepared, const Worker& worker) const;

 private:
  const int threads_;  // of all ranks
  Ranks* const ranks_;
  int64_t row_bytes_[kSpaces] = {};
  int64_t prepared_row_bytes_[kSpaces] = {};
  int32_t capacity_[kSpaces] = {};  // rows
  Pages pages_[kSpaces];
  Pages prepared_[kSpaces];
};

}  // namespace octavo
