// The scalar kernels as a table.
#define OCTAVO_TIER scalar
#include "kernels/tier.inl"
