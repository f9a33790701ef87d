// The memory of a step's intermediate results.
#include "program/scratch.h"

namespace octavo {

namespace {

// Up to so many rows and floats every thread prepares a product's input for itself.
constexpr int kPrivateRows = 8;
constexpr int kPrivateFloats = 8192;

// Capacities are powers of two from this one on, so that memory seldom grows.
constexpr int32_t kFewestRows = 16;
// From more rows on memory is in huge pages.
constexpr int32_t kRowsOfSmallPages = 64;

int32_t capacity_for(int32_t rows) {
  int32_t capacity = kFewestRows;
  while (capacity < rows) capacity *= 2;
  return capacity;
}

}  // namespace

void Scratch::set_row_bytes(Space space, int64_t row_bytes, int64_t prepared_row_bytes) {
  row_bytes_[static_cast<int>(space)] = row_bytes;
  prepared_row_bytes_[static_cast<int>(space)] = prepared_row_bytes;
}

void Scratch::reserve(const Step& step) {
  for (int space = 0; space < kSpaces; ++space) {
    const int rows = step.rows(static_cast<Space>(space));
    if (rows <= capacity_[space]) continue;
    const int32_t capacity = capacity_for(rows);
    const bool huge = capacity > kRowsOfSmallPages;
    capacity_[space] = 0;     // in case there is no memory
    pages_[space] = Pages();  // the old memory is returned before new memory is taken
    prepared_[space] = Pages();
    pages_[space] = pages_for(ranks_, static_cast<size_t>(row_bytes_[space]) * capacity, huge);
    prepared_[space] =
        pages_for(ranks_, static_cast<size_t>(prepared_row_bytes_[space]) * capacity, huge);
    capacity_[space] = capacity;
  }
}

size_t Scratch::bytes() const {
  size_t bytes = 0;
  for (int space = 0; space < kSpaces; ++space)
    bytes += pages_[space].bytes() + prepared_[space].bytes();
  return bytes;
}

size_t Scratch::private_bytes() const {
  size_t bytes = 0;
  for (const int64_t row_bytes : prepared_row_bytes_) bytes += row_bytes * kPrivateRows;
  return bytes;
}

bool Scratch::is_private(const Step& step, const Prepared& prepared) const {
  const int rows = step.rows(prepared.space);
  return threads_ > 1 && prepared.space != Space::Pairs && rows <= kPrivateRows &&
         static_cast<int64_t>(rows) * prepared.inputs <= kPrivateFloats;
}

uint8_t* Scratch::prepared_at(const Step& step, const Prepared& prepared,
                              const Worker& worker) const {
  const int space = static_cast<int>(prepared.space);
  if (!is_private(step, prepared))
    return prepared_[space].data() + prepared.offset * capacity_[space];
  int64_t before = prepared.offset;
  for (int other = 0; other < space; ++other) before += prepared_row_bytes_[other];
  return worker.prepared + before * kPrivateRows;
}

}  // namespace octavo
