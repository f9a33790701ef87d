// The test of tiers that multiply many rows by other instructions than few.
#pragma once

#include <string>

#include "kernels/table.h"

namespace octavo {

// Compares the tier's products of many rows with those of each row alone, bit by bit. Returns what
// differs, nothing if all is equal. Takes a few milliseconds.
std::string wrong_products(const KernelTable& kernels);

}  // namespace octavo
