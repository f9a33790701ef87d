// The kernels of the amx_emulated tier as a table.
#define OCTAVO_TIER amx_emulated
#include "kernels/tier.inl"
