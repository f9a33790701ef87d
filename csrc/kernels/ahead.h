// How far ahead of their use weights are prefetched where nothing else was measured.
#pragma once

#include "kernels/table.h"

namespace octavo {

constexpr int kAheadBytes = 8192;

// The number of rows from which on weights are prefetched. With fewer, products wait for memory,
// and the processor's own prefetching is best; with more to compute for each byte it does not reach
// far enough. Measured on a Zen 4.
constexpr int ahead_from_rows(Format format) {
  switch (format) {
    case Format::F32:
    case Format::F16:
    case Format::BF16: return 6;
    case Format::U8:
    case Format::U8By64:
    case Format::U8By128: return 5;
    case Format::Mx4: return 3;
    case Format::U5K:  // large headers, and much computation for each byte
    case Format::U6: return 1;
    default: return 2;
  }
}

constexpr int default_ahead(Format format, int rows) {
  return rows >= ahead_from_rows(format) ? kAheadBytes : 0;
}

}  // namespace octavo
