// The kernels of the amx tier as a table.
#define OCTAVO_TIER amx
#include "kernels/tier.inl"
