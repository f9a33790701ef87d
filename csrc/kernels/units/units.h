// What the translation units of a tier have of each other. They are compiled apart because together
// they take longer than all the rest of the engine, which a second processor then waits for.
#pragma once

#include "kernels/table.h"

namespace octavo {
namespace OCTAVO_TIER {

void add_attention(KernelTable& table);  // attention.cpp

// codes.cpp: products with codes of integers, and one row of them as fp32.
void multiply_integers(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                       int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead);
void unpack_integers(const Matrix& matrix, int output, float* out);

}  // namespace OCTAVO_TIER
}  // namespace octavo
