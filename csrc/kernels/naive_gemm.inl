// The plainest product: fp32 panels [inputs][32], one output after the other.
#include "kernels/math.inl"

namespace octavo {
namespace OCTAVO_TIER {
namespace {

size_t prepared_bytes(Format, int inputs) {
  return (static_cast<size_t>(inputs) * sizeof(float) + kAlign - 1) / kAlign * kAlign;
}

void prepare(Format format, const float* x, size_t x_stride, int rows, int inputs,
             uint8_t* prepared) {
  const size_t bytes = prepared_bytes(format, inputs);
  for (int row = 0; row < rows; ++row)
    std::memcpy(prepared + row * bytes, x + row * x_stride, inputs * sizeof(float));
}

size_t gemm_scratch(const Matrix&) { return 0; }

float activated_one(Activation activation, float x) {
  return activated(activation, splat(x))[0];
}

void finish_one(const Matrix& matrix, const Epilogue& e, int row, int output, float y) {
  if (output >= matrix.outputs) return;
  if (e.bias) y += e.bias[output];
  y *= e.scale;
  if (e.cap != 0.0f) y = hyperbolic_tangent(splat(y / e.cap))[0] * e.cap;
  y = activated_one(e.activation, y);
  const int column = e.first_output + output;
  const int to = e.out_rows ? e.out_rows[row] : row;
  float* out = e.out + to * e.out_stride + column;
  if (e.residual) y += e.residual[row * e.residual_stride + column];
  if (e.row_weights) *out += y * e.row_weights[row];
  else *out = y;
}

void finish_gated(const Matrix& matrix, const Epilogue& e, int row, int panel, const float* y) {
  for (int column = 0; column < kPanel / 2; ++column) {
    const int gate_at = panel * kPanel + column, up_at = gate_at + kPanel / 2;
    if (gate_at >= matrix.outputs) return;
    const float g = y[column] + (e.bias ? e.bias[gate_at] : 0.0f);
    const float u = y[column + kPanel / 2] + (e.bias ? e.bias[up_at] : 0.0f);
    const int to = e.out_rows ? e.out_rows[row] : row;
    e.out[to * e.out_stride + e.first_output + panel * (kPanel / 2) + column] =
        gated(e.activation, splat(g), splat(u))[0];
  }
}

void gemm(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel, int end_panel,
          uint8_t*, const Epilogue& epilogue) {
  const size_t bytes = prepared_bytes(matrix.format, matrix.inputs);
  for (int panel = first_panel; panel < end_panel; ++panel) {
    const float* weights = reinterpret_cast<const float*>(matrix.data + panel * matrix.panel_bytes);
    for (int row = 0; row < rows; ++row) {
      const float* x = reinterpret_cast<const float*>(prepared + row * bytes);
      Floats low{}, high{};
      for (int input = 0; input < matrix.inputs; ++input) {
        low += x[input] * load(weights + input * kPanel);
        high += x[input] * load(weights + input * kPanel + kLanes);
      }
      float y[kPanel];
      store(y, low);
      store(y + kLanes, high);
      if (epilogue.gated) {
        finish_gated(matrix, epilogue, row, panel, y);
        continue;
      }
      for (int column = 0; column < kPanel; ++column)
        finish_one(matrix, epilogue, row, panel * kPanel + column, y[column]);
    }
  }
}

void unpack_row(const Matrix& matrix, int output, float* out) {
  const float* weights = reinterpret_cast<const float*>(
      matrix.data + static_cast<size_t>(output / kPanel) * matrix.panel_bytes);
  for (int input = 0; input < matrix.inputs; ++input)
    out[input] = weights[input * kPanel + output % kPanel];
}

int32_t arg_max(const float* logits, int size) {
  int best = 0;
  for (int index = 0; index < size; ++index) {
    if (!(logits[index] < HUGE_VALF)) return -1;
    if (logits[index] > logits[best]) best = index;
  }
  return best;
}

void add_naive_gemm(KernelTable& table) {
  table.prepared_bytes = prepared_bytes;
  table.prepare = prepare;
  table.gemm_scratch = gemm_scratch;
  table.gemm = gemm;
  table.unpack_row = unpack_row;
  table.arg_max = arg_max;
}

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
