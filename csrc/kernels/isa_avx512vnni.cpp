// The avx512vnni kernels as a table.
#define OCTAVO_TIER avx512vnni
#include "kernels/tier.inl"
