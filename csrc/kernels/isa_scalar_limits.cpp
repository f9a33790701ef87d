// The limits of the scalar tier as a table.
#define OCTAVO_TIER scalar
#include "kernels/limits.inl"
