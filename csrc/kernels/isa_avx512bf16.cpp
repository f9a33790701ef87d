// The avx512bf16 kernels as a table.
#define OCTAVO_TIER avx512bf16
#include "kernels/tier.inl"
