// Products with codes of integers, the second largest unit of a tier.
#include <products.h>

#include "kernels/units/units.h"

namespace octavo {
namespace OCTAVO_TIER {

void multiply_integers(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                       int end_panel, uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  codes_product(matrix, prepared, rows, first_panel, end_panel, scratch, epilogue, ahead);
}

void unpack_integers(const Matrix& matrix, int output, float* out) {
  unpack_quantized_row(matrix, output, out);
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
