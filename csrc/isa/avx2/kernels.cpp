// The kernels of the avx2 tier as a table.
#define OCTAVO_TIER avx2
#include "kernels/tier.inl"
