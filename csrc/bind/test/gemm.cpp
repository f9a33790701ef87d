// Single products in any tier and format, for kernel tests and benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/test/parts.h"
#include "pack/pack.h"
#include "runtime/processor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

const char* const kFormatNames[kFormats] = {
#define OCTAVO_EACH_FORMAT(name) #name,
#include "kernels/formats.inc"
#undef OCTAVO_EACH_FORMAT
};
const char* const kActivationNames[] = {"none", "silu",  "gelu",           "gelu_tanh",
                                        "relu", "relu2", "clamped_swiglu", "sigmoid"};

using Rows8 = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes2 = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints1 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

template <size_t Size>
int number_of(const char* what, const std::string& name, const char* const (&names)[Size]) {
  std::string all;
  for (size_t i = 0; i < Size; ++i) {
    if (name == names[i]) return static_cast<int>(i);
    all += std::string(i ? ", " : "") + names[i];
  }
  refuse("no " + std::string(what) + " '" + name + "': there are " + all);
}

struct Free {
  void operator()(uint8_t* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<uint8_t[], Free>;

constexpr size_t kHugePage = size_t{2} << 20;

// Memory aligned for kernels; large amounts lie in huge pages, as the engine's own weights do.
Bytes allocate(size_t bytes) {
  const size_t align = bytes >= kHugePage ? kHugePage : kAlign;
  const size_t rounded = std::max((bytes + align - 1) / align * align, align);
  void* p = std::aligned_alloc(align, rounded);
  if (!p) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (align == kHugePage) madvise(p, rounded, MADV_HUGEPAGE);
#endif
  return Bytes(static_cast<uint8_t*>(p));
}

struct PackedMatrix {
  Bytes bytes;
  Matrix matrix;
  int panels() const { return num_panels(matrix); }
  size_t num_bytes() const { return panels() * matrix.panel_bytes; }
};

PackedMatrix pack(const std::string& format_name, uint32_t stored_type,
                  const std::vector<std::optional<Rows8>>& rows, int inputs) {
  const auto format = static_cast<Format>(number_of("format", format_name, kFormatNames));
  const auto type = static_cast<Stored>(stored_type);
  if (inputs < 1 || rows.empty()) refuse("a matrix needs at least one row and one input");
  std::vector<const uint8_t*> pointers;
  for (const std::optional<Rows8>& row : rows) {
    if (row && row->size() != stored_row_bytes(type, inputs)) {
      refuse("a row of " + std::to_string(inputs) + " inputs has " +
             std::to_string(stored_row_bytes(type, inputs)) + " bytes, not " +
             std::to_string(row->size()));
    }
    pointers.push_back(row ? row->data() : nullptr);
  }
  const int outputs = static_cast<int>(rows.size());
  PackedMatrix packed{nullptr, {nullptr, panel_bytes(format, inputs), outputs, inputs, format}};
  packed.bytes = allocate(packed.panels() * packed.matrix.panel_bytes);
  packed.matrix.data = packed.bytes.get();
  pack_panels(format, type, pointers.data(), outputs, inputs, 0, packed.panels(),
              packed.bytes.get());
  return packed;
}

// Prepares rows as the format's products read them: [rows, prepared_bytes] of bytes.
nb::ndarray<nb::numpy, uint8_t> prepare(const std::string& tier, const std::string& format_name,
                                        const Floats2& x) {
  const auto format = static_cast<Format>(number_of("format", format_name, kFormatNames));
  const KernelTable& kernels = choose_tier(tier);
  const size_t row_bytes = kernels.prepared_bytes(format, static_cast<int>(x.shape(1)));
  Bytes bytes = allocate(x.shape(0) * row_bytes);
  kernels.prepare(format, x.data(), x.shape(1), static_cast<int>(x.shape(0)),
                  static_cast<int>(x.shape(1)), bytes.get());
  uint8_t* data = bytes.release();
  nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  return nb::ndarray<nb::numpy, uint8_t>(data, {x.shape(0), row_bytes}, owner);
}

struct GemmArguments {
  const PackedMatrix& packed;
  size_t rows;
  const FloatsOut& out;
  const std::optional<Floats1>& bias;
  const std::optional<Floats2>& residual;
  const std::optional<Ints1>& out_rows;
  const std::optional<Floats1>& row_weights;
};

// A test that passes arrays of the wrong size must get an error, not corrupt memory.
void check(const GemmArguments& given, const Epilogue& epilogue, int first_panel, int end_panel) {
  const Matrix& matrix = given.packed.matrix;
  if (first_panel < 0 || end_panel > given.packed.panels() || first_panel > end_panel) {
    refuse("panels must lie within 0 and " + std::to_string(given.packed.panels()));
  }
  const int panels = given.packed.panels();
  int columns = matrix.outputs;
  if (epilogue.gated) {
    const int last = matrix.outputs - (panels - 1) * kPanel - kPanel / 2;
    if (last < 1) refuse("the last panel of a gated matrix has no ups");
    columns = (panels - 1) * (kPanel / 2) + last;
  }
  const size_t width = static_cast<size_t>(epilogue.first_output) + columns;
  if (epilogue.first_output < 0 || width > given.out.shape(1)) {
    refuse("out has too few columns: " + std::to_string(width) + " are written");
  }
  const auto& residual = given.residual;
  if (residual && (residual->shape(0) < given.rows || residual->shape(1) < width)) {
    refuse("residual must be as large as what is written");
  }
  if (given.bias && given.bias->size() != static_cast<size_t>(matrix.outputs)) {
    refuse("bias must have one number for each output of the matrix");
  }
  if (given.row_weights && given.row_weights->size() != given.rows) {
    refuse("row_weights must have one number for each row");
  }
  if (!given.out_rows && given.out.shape(0) < given.rows) refuse("out has too few rows");
  if (!given.out_rows) return;
  if (given.out_rows->size() != given.rows) refuse("out_rows must have one number for each row");
  for (size_t r = 0; r < given.rows; ++r) {
    const int32_t row = given.out_rows->data()[r];
    if (row < 0 || static_cast<size_t>(row) >= given.out.shape(0)) refuse("out_rows beyond out");
  }
}

void gemm(const std::string& tier, const PackedMatrix& packed, const Bytes2& prepared,
          const FloatsOut& out, int first_panel, int end_panel, int first_output,
          const std::optional<Floats1>& bias, const std::optional<Floats2>& residual, float scale,
          float cap, const std::string& activation, bool gated,
          const std::optional<Ints1>& out_rows, const std::optional<Floats1>& row_weights,
          int ahead) {
  const KernelTable& kernels = choose_tier(tier);
  const Matrix& matrix = packed.matrix;
  if (prepared.shape(1) != kernels.prepared_bytes(matrix.format, matrix.inputs)) {
    refuse("rows were prepared for another tier, format or number of inputs");
  }
  Epilogue epilogue;
  epilogue.out = out.data();
  epilogue.out_stride = out.shape(1);
  epilogue.first_output = first_output;
  epilogue.bias = bias ? bias->data() : nullptr;
  epilogue.residual = residual ? residual->data() : nullptr;
  epilogue.residual_stride = residual ? residual->shape(1) : 0;
  epilogue.scale = scale;
  epilogue.cap = cap;
  epilogue.activation =
      static_cast<Activation>(number_of("activation", activation, kActivationNames));
  epilogue.gated = gated;
  epilogue.out_rows = out_rows ? out_rows->data() : nullptr;
  epilogue.row_weights = row_weights ? row_weights->data() : nullptr;
  if (end_panel < 0) end_panel = packed.panels();
  check({packed, prepared.shape(0), out, bias, residual, out_rows, row_weights}, epilogue,
        first_panel, end_panel);
  const Bytes scratch = allocate(kernels.gemm_scratch(matrix));
  const int rows = static_cast<int>(prepared.shape(0));
  nb::gil_scoped_release release;
  kernels.gemm(matrix, prepared.data(), rows, first_panel, end_panel, scratch.get(), epilogue,
               ahead);
}

void unpack_row(const std::string& tier, const PackedMatrix& packed, int output,
                const nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>& out) {
  if (output < 0 || output >= packed.matrix.outputs) refuse("the matrix has no such output");
  if (out.size() != static_cast<size_t>(packed.matrix.inputs)) refuse("out must hold one row");
  choose_tier(tier).unpack_row(packed.matrix, output, out.data());
}

}  // namespace

void bind_test_gemm(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def_prop_ro("outputs", [](const PackedMatrix& p) { return p.matrix.outputs; })
      .def_prop_ro("inputs", [](const PackedMatrix& p) { return p.matrix.inputs; })
      .def_prop_ro("panels", &PackedMatrix::panels)
      .def_prop_ro("format",
                   [](const PackedMatrix& p) {
                     return kFormatNames[static_cast<int>(p.matrix.format)];
                   })
      .def_prop_ro("num_bytes", &PackedMatrix::num_bytes)
      .def_prop_ro("panel_bytes", [](const PackedMatrix& p) {
        return nb::ndarray<nb::numpy, const uint8_t>(p.bytes.get(), {p.num_bytes()});
      }, nb::rv_policy::reference_internal);
  m.def("pack", &pack, "format"_a, "stored_type"_a, "rows"_a, "inputs"_a);
  m.def("prepare", &prepare, "tier"_a, "format"_a, "x"_a);
  m.def("gemm", &gemm, "tier"_a, "matrix"_a, "prepared"_a, "out"_a, "first_panel"_a = 0,
        "end_panel"_a = -1, "first_output"_a = 0, "bias"_a = nb::none(),
        "residual"_a = nb::none(), "scale"_a = 1.0f, "cap"_a = 0.0f, "activation"_a = "none",
        "gated"_a = false, "out_rows"_a = nb::none(), "row_weights"_a = nb::none(),
        "ahead"_a = kDefaultAhead);
  m.def("unpack_row", &unpack_row, "tier"_a, "matrix"_a, "output"_a, "out"_a);
}

}  // namespace octavo
