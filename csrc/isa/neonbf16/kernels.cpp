// The kernels of the neonbf16 tier as a table.
#define OCTAVO_TIER neonbf16
#include "kernels/tier.inl"

#include <matrix_codes.h>
