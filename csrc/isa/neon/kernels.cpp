// The kernels of the neon tier as a table.
#define OCTAVO_TIER neon
#include "kernels/tier.inl"
