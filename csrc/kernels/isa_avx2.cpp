// The avx2 kernels as a table.
#define OCTAVO_TIER avx2
#include "kernels/tier.inl"
