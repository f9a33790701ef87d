// The kernels of the scalar tier as a table.
#define OCTAVO_TIER scalar
#include "kernels/tier.inl"
