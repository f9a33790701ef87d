// Rows of bf16 numbers as vectors. Their products with weights are in tile_bf16.h.
#pragma once

#include <bf16_vectors.h>
