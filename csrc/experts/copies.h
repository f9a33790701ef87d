// The copies of experts that are in two ranks: their memory, and how weights get there.
//
// The memory is shared, so that the rank that owns an expert writes its weights into the slot of
// another. It does so between steps, a bounded number of bytes each time.
#pragma once

#include <cstdint>
#include <vector>

#include "experts/balance.h"
#include "program/instruction.h"
#include "runtime/ranks.h"

namespace octavo {

// The slots of one mixture.
class ExpertCopies {
 public:
  // The two products of the mixture, whose matrices this rank has or lacks.
  ExpertCopies(Ranks& ranks, const ExpertBalance& balance, const std::vector<Piece>& in,
               const std::vector<Piece>& out);

  // The matrix in a slot that multiplies into (0) or out of (1) the experts' inner width.
  Matrix matrix(int product, int slot) const;

  // Writes at most so many bytes of an expert that this rank owns, from byte `first` of both of its
  // matrices on.
  void write(const ExpertBalance::Copy& copy, size_t first, size_t bytes) const;
  size_t expert_bytes() const { return sizes_[0] + sizes_[1]; }

 private:
  std::vector<Matrix> matrices_[2];  // of all experts
  size_t sizes_[2];                  // bytes of a matrix
  std::vector<Pages> slots_;
};

}  // namespace octavo
