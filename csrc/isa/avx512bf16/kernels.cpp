// The kernels of the avx512bf16 tier as a table.
#define OCTAVO_TIER avx512bf16
#include "kernels/tier.inl"
