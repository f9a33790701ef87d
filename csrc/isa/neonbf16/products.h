// The products of this tier: by vectors, and with codes of integers by matrices of four outputs.
#pragma once

#include "isa/no_tiles/products.h"

#include <matrix_codes.h>
