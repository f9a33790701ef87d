// The kernels of the avx512vnni tier as a table.
#define OCTAVO_TIER avx512vnni
#include "kernels/tier.inl"
