// The products' part of the table: the functions for each kind of format.
//
// Each tier defines in its own products.h, by kernels/gemm_*.inl or by tiles:
//   bf16_product   the function for BF16
//   codes_product  the one for formats with codes of integers
//   coded_product  the one for codes that stand for floats, with coded_gemm_scratch
//   kTiles         whether they use tiles for many rows
#pragma once

#include <products.h>

#include "kernels/codings.inl"
#include "kernels/gemm_codes.inl"
#include "kernels/gemm_float.inl"
#include "kernels/gemm_wide.inl"
#include "kernels/units/units.h"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

inline bool is_float(Format format) {
  return format == Format::F32 || format == Format::F16 || format == Format::BF16;
}

// The format whose prepared rows the products of a format read.
inline Format prepared_for(Format format) {
  return is_coded_format(format) ? Format::BF16 : format;
}

size_t prepared_bytes(Format of, int inputs) {
  const Format format = prepared_for(of);
  if (is_float(format)) return float_prepared_bytes(format, inputs);
  if (format == Format::U8Wide) return prepared_wide_bytes(inputs);
  return prepared_int8_bytes(inputs);
}

void prepare(Format of, const float* x, size_t x_stride, int rows, int inputs,
             uint8_t* prepared) {
  const Format format = prepared_for(of);
  if (is_float(format)) return float_prepare(format, x, x_stride, rows, inputs, prepared);
  if (format == Format::U8Wide) return prepare_wide(x, x_stride, rows, inputs, prepared);
  prepare_int8(x, x_stride, rows, inputs, prepared);
}

size_t gemm_scratch(const Matrix& matrix) {
  if (is_float(matrix.format)) return float_gemm_scratch();
  if (is_coded_format(matrix.format)) return coded_gemm_scratch();
  return quantized_scratch();
}

void gemm(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel, int end_panel,
          uint8_t* scratch, const Epilogue& epilogue, int ahead) {
  const auto product = matrix.format == Format::F32      ? multiply<StepF32>
                       : matrix.format == Format::F16    ? multiply<StepF16>
                       : matrix.format == Format::BF16   ? bf16_product
                       : matrix.format == Format::U8Wide ? gemm_wide
                       : is_coded_format(matrix.format)  ? coded_product
                                                         : multiply_integers;
  product(matrix, prepared, rows, first_panel, end_panel, scratch, epilogue, ahead);
}

void unpack_row(const Matrix& matrix, int output, float* out) {
  if (is_float(matrix.format)) return float_unpack_row(matrix, output, out);
  if (is_coded_format(matrix.format)) return coded_unpack_row(matrix, output, out);
  unpack_integers(matrix, output, out);
}

void add_gemm(KernelTable& table) {
  table.prepared_bytes = prepared_bytes;
  table.prepare = prepare;
  table.gemm_scratch = gemm_scratch;
  table.gemm = gemm;
  table.tiles = kTiles;
  table.unpack_row = unpack_row;
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
