// The memory of copies of experts.
#include "experts/copies.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace octavo {

namespace {

constexpr size_t kPage = 4096;

size_t bytes_of(const Matrix& matrix) { return matrix.panel_bytes * num_panels(matrix); }
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

ExpertCopies::ExpertCopies(Ranks& ranks, const ExpertBalance& balance,
                           const std::vector<Piece>& in, const std::vector<Piece>& out) {
  for (const Piece& piece : in) matrices_[0].push_back(piece.matrix);
  for (const Piece& piece : out) matrices_[1].push_back(piece.matrix);
  for (int product = 0; product < 2; ++product) {
    sizes_[product] = bytes_of(matrices_[product][0]);
    for (const Matrix& each : matrices_[product])
      if (bytes_of(each) != sizes_[product] || each.format != matrices_[product][0].format)
        throw std::invalid_argument("experts of different shapes have no copies");
  }
  const size_t bytes = aligned(sizes_[0]) + sizes_[1];
  for (int slot = 0; slot < balance.slots(); ++slot) {
    slots_.push_back(ranks.same(bytes, false));
    // Memory is where it was first touched: near the rank that will read it.
    if (balance.holder(slot) != ranks.rank()) continue;
    for (size_t at = 0; at < bytes; at += kPage) slots_.back().data()[at] = 0;
  }
}

Matrix ExpertCopies::matrix(int product, int slot) const {
  Matrix made = matrices_[product][0];
  made.data = slots_[slot].data() + (product == 0 ? 0 : aligned(sizes_[0]));
  return made;
}

void ExpertCopies::write(const ExpertBalance::Copy& copy, size_t first, size_t bytes) const {
  const size_t end = std::min(first + bytes, expert_bytes());
  for (int product = 0; product < 2; ++product) {
    const size_t start = product == 0 ? 0 : sizes_[0], stop = start + sizes_[product];
    const size_t from = std::max(first, start), to = std::min(end, stop);
    if (from >= to) continue;
    auto* data = const_cast<uint8_t*>(matrix(product, copy.slot).data);
    std::memcpy(data + (from - start), matrices_[product][copy.expert].data + (from - start),
                to - from);
  }
}

}  // namespace octavo
