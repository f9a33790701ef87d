// Binds the team, and weights packed for the kernels.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>

#include "bind/parts.h"
#include "bind/row_tensors.h"
#include "kernels/coded_layout.h"
#include "pack/checksum.h"
#include "pack/pack.h"
#include "pack/pack_queue.h"
#include "runtime/arena.h"
#include "runtime/platform.h"
#include "runtime/processor.h"
#include "runtime/team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Addresses = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FilePages = std::vector<std::pair<uintptr_t, size_t>>;
using Tensors = std::vector<const RowTensors*>;
using Factors = std::optional<FloatArray>;

size_t num_bytes(const Matrix& matrix) {
  return matrix.panel_bytes * num_panels(matrix);
}

// Packed weights, kept until the store ends. Users of its matrices must keep the store alive. Of
// a matrix it has the panels that are this rank's, or all if it or the store is `whole`.
class Store {
 public:
  Store(const Team& team, bool whole) : team_(team), whole_(whole) {}
  Store(const Store&) = delete;

  uintptr_t vector(FloatArray values) {
    uint8_t* at = vectors_.take(values.size() * sizeof(float));
    std::memcpy(at, values.data(), values.size() * sizeof(float));
    return reinterpret_cast<uintptr_t>(at);
  }

  // Rows are addresses of stored rows inside what `owner` keeps alive, 0 for zeros; or, if they are
  // made of `tensors`, numbers as row_places describes. The job is only queued: `begin` starts the
  // queued jobs, and `finish` returns when they are done. A matrix drops its `file_pages` (address,
  // bytes) when it is packed.
  Matrix pack(Stored type, Format format, int inputs, Addresses rows, nb::object owner,
              const FilePages& file_pages, const Tensors& tensors, const Factors& factors,
              bool whole) {
    Matrix matrix = shaped(format, static_cast<int32_t>(rows.size()), inputs);
    check(type, format, inputs);
    const Share mine = share(matrix, whole);
    // Where the first panel would be: a rank never reads those of others.
    matrix.data = matrices_.take(matrix.panel_bytes * mine.count());
    matrix.data -= mine.first * matrix.panel_bytes;
    add_job(matrix, mine, type, rows, std::move(owner), file_pages, tensors, factors);
    return matrix;
  }

  // A matrix that only other ranks have.
  Matrix absent(Format format, int outputs, int inputs) const {
    return shaped(format, outputs, inputs);
  }

  // A matrix whose panels are in memory already, inside what `owner` keeps alive.
  Matrix place(Format format, int outputs, int inputs, Bytes panels, nb::object owner,
               bool whole) {
    Matrix matrix = shaped(format, outputs, inputs);
    const Share mine = share(matrix, whole);
    const size_t bytes = matrix.panel_bytes * mine.count();
    if (panels.size() != bytes)
      throw std::invalid_argument("these panels are " + std::to_string(panels.size()) +
                                  " bytes, and the matrix has " + std::to_string(bytes));
    if (reinterpret_cast<uintptr_t>(panels.data()) % kAlign != 0)
      throw std::invalid_argument("panels must begin at a multiple of " + std::to_string(kAlign));
    matrix.data = panels.data() - mine.first * matrix.panel_bytes;
    mapped_.push_back(std::move(owner));
    mapped_bytes_ += bytes;
    return matrix;
  }

  // Packs rows over the panels of a matrix that was placed, where these must be writable.
  void pack_over(const Matrix& matrix, Stored type, Addresses rows, nb::object owner,
                 const FilePages& file_pages, const Tensors& tensors, const Factors& factors,
                 bool whole) {
    if (rows.size() != static_cast<size_t>(matrix.outputs))
      throw std::invalid_argument("a row is needed for each output");
    check(type, matrix.format, matrix.inputs);
    const Share mine = share(matrix, whole);
    auto* held = const_cast<uint8_t*>(matrix.data) + mine.first * matrix.panel_bytes;
    std::memset(held, 0, matrix.panel_bytes * mine.count());  // as fresh memory is
    add_job(matrix, mine, type, rows, std::move(owner), file_pages, tensors, factors);
  }

  // The packed bytes themselves that this rank has, as long as `matrix` is kept.
  nb::object panels(nb::object matrix, bool whole) const {
    const auto& found = nb::cast<const Matrix&>(matrix);
    const Share mine = share(found, whole);
    const size_t bytes = found.panel_bytes * mine.count();
    const uint8_t* held = found.data + mine.first * found.panel_bytes;
    return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(held, {bytes}, matrix),
                    nb::rv_policy::reference);
  }

  void begin() {
    nb::gil_scoped_release released;
    queue_.begin(team_.size());
  }

  void finish() {
    wait();  // for the jobs that have begun
    begin();
    wait();
    owners_.clear();
  }

  size_t all_bytes() const { return matrices_.taken() + vectors_.taken() + mapped_bytes_; }

 private:
  Share share(const Matrix& matrix, bool whole) const {
    const int panels = num_panels(matrix);
    return whole_ || whole ? Share{0, panels} : team_.share(panels);
  }

  // Checked here, because a thread that packs cannot report errors to the caller.
  static void check(Stored type, Format format, int inputs) {
    if (!can_pack(type, format))
      throw std::invalid_argument("rows of this stored type cannot be packed in this format");
    stored_row_bytes(type, inputs);  // throws before memory is taken, unless blocks are whole
  }

  static Matrix shaped(Format format, int32_t outputs, int inputs) {
    if (inputs < 1) throw std::invalid_argument("a matrix needs at least one input");
    Matrix matrix{};
    matrix.panel_bytes = panel_bytes(format, inputs);
    matrix.outputs = outputs;
    matrix.inputs = inputs;
    matrix.format = format;
    return matrix;
  }

  void add_job(const Matrix& matrix, const Share& mine, Stored type, const Addresses& rows,
               nb::object owner, const FilePages& file_pages, const Tensors& tensors,
               const Factors& factors) {
    PackJob job{};
    job.format = matrix.format;
    job.type = type;
    job.inputs = matrix.inputs;
    job.data = const_cast<uint8_t*>(matrix.data);
    job.first_panel = mine.first;
    job.end_panel = mine.end;
    if (factors) {
      if (!has_output_scales(matrix.format) || factors->size() != rows.size())
        throw std::invalid_argument("a format with scales of outputs takes a factor for each row");
      job.factors.assign(factors->data(), factors->data() + factors->size());
    }
    if (tensors.empty()) {
      const auto* from = reinterpret_cast<const uint8_t* const*>(rows.data());
      job.rows.assign(from, from + rows.size());
    } else {
      const size_t row_bytes = stored_row_bytes(type, matrix.inputs);
      job.places = row_places(rows.data(), rows.size(), tensors, row_bytes);
      for (const RowTensors* each : tensors) job.tensors.push_back(each->made_of);
    }
    for (const auto& [address, bytes] : file_pages) {
      job.file_pages.emplace_back(reinterpret_cast<const uint8_t*>(address), bytes);
    }
    owners_.push_back(std::move(owner));
    queue_.add(std::move(job));
  }

  void wait() {
    for (bool is_over = false; !is_over;) {
      {
        nb::gil_scoped_release released;
        is_over = queue_.help();
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C interrupts a long load
    }
    nb::gil_scoped_release released;
    queue_.finish();
  }

  const Team& team_;
  const bool whole_;
  Arena matrices_{true};
  Arena vectors_{false};  // separate, so that only packing threads touch the pages of matrices
  std::vector<nb::object> mapped_;
  size_t mapped_bytes_ = 0;
  std::vector<nb::object> owners_;
  PackQueue queue_;  // last, so that it ends before the memory that it reads and fills
};

// The packed bytes themselves, as long as the matrix is kept.
nb::object panels_of(nb::object self) {
  const auto& matrix = nb::cast<const Matrix&>(self);
  const size_t size = num_bytes(matrix);
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(matrix.data, {size}, self),
                  nb::rv_policy::reference);
}

uint64_t checksum_of(Bytes bytes) {
  nb::gil_scoped_release released;
  return checksum(bytes.data(), bytes.size());
}

nb::object unpacked(const Matrix& matrix, int row, const std::string& tier) {
  if (row < 0 || row >= matrix.outputs) throw std::out_of_range("no such row");
  float* values = new float[matrix.inputs];
  nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  choose_tier(tier).unpack_row(matrix, row, values);
  const size_t size = matrix.inputs;
  return nb::cast(nb::ndarray<nb::numpy, float>(values, {size}, owner));
}

// Several rows, while other threads of Python go on.
nb::object unpacked_rows(const Matrix& matrix, int first, int count) {
  if (first < 0 || count < 0 || count > matrix.outputs - first)
    throw std::out_of_range("no such rows");
  const size_t rows = count, width = matrix.inputs;
  float* values = new float[rows * width];
  nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  {
    const nb::gil_scoped_release released;
    const KernelTable& kernels = choose_tier("");
    for (int row = 0; row < count; ++row)
      kernels.unpack_row(matrix, first + row, values + row * width);
  }
  return nb::cast(nb::ndarray<nb::numpy, float>(values, {rows, width}, owner));
}

}  // namespace

void bind_weights(nb::module_& m) {
  nb::enum_<Format> formats(m, "Format");
#define OCTAVO_EACH_FORMAT(name) formats.value(#name, Format::name);
#include "kernels/formats.inc"
#undef OCTAVO_EACH_FORMAT
  nb::enum_<Stored> stored(m, "Stored");
#define OCTAVO_EACH_STORED(name, number) stored.value(#name, Stored::name);
#include "pack/stored.inc"
#undef OCTAVO_EACH_STORED
  nb::class_<Matrix>(m, "Matrix")
      .def_ro("outputs", &Matrix::outputs)
      .def_ro("inputs", &Matrix::inputs)
      .def_ro("format", &Matrix::format)
      .def_prop_ro("num_bytes", &num_bytes)
      .def_prop_ro("panels", &panels_of)
      .def("row", &unpacked, "row"_a, "tier"_a = "")
      .def("rows", &unpacked_rows, "first"_a, "count"_a);
  nb::class_<Team>(m, "Team")
      .def(nb::init<int, bool, std::shared_ptr<Ranks>>(), "size"_a, "pinned"_a,
           "ranks"_a = nb::none())
      .def_prop_ro("size", &Team::size)
      .def_prop_ro("all", &Team::all);
  nb::class_<Store>(m, "Store")
      .def(nb::init<const Team&, bool>(), "team"_a, "whole"_a = false, nb::keep_alive<1, 2>())
      .def("vector", &Store::vector, "values"_a)
      .def("pack", &Store::pack, "type"_a, "format"_a, "inputs"_a, "rows"_a, "owner"_a,
           "file_pages"_a, "tensors"_a = Tensors{}, "factors"_a = nb::none(), "whole"_a = false,
           nb::keep_alive<0, 1>())
      .def("absent", &Store::absent, "format"_a, "outputs"_a, "inputs"_a)
      .def("place", &Store::place, "format"_a, "outputs"_a, "inputs"_a, "panels"_a, "owner"_a,
           "whole"_a = false, nb::keep_alive<0, 1>())
      .def("pack_over", &Store::pack_over, "matrix"_a, "type"_a, "rows"_a, "owner"_a,
           "file_pages"_a, "tensors"_a = Tensors{}, "factors"_a = nb::none(), "whole"_a = false)
      .def("panels", &Store::panels, "matrix"_a, "whole"_a = false)
      .def("begin", &Store::begin)
      .def("finish", &Store::finish)
      .def_prop_ro("num_bytes", &Store::all_bytes);
  m.def("checksum", &checksum_of, "bytes"_a);
  m.def("own_format", &own_format, "type"_a);
  m.def("can_pack", &can_pack, "type"_a, "format"_a);
  m.def("multiplies_bf16", &multiplies_bf16, "format"_a);
  m.def("panel_bytes", &panel_bytes, "format"_a, "inputs"_a);
  m.def("stored_row_bytes", &stored_row_bytes, "type"_a, "inputs"_a);
  m.def("physical_cores", &physical_cores);
  m.def("prepared_bytes", [](const std::string& tier, Format format, int inputs) {
    return choose_tier(tier).prepared_bytes(format, inputs);
  }, "tier"_a, "format"_a, "inputs"_a);
}

}  // namespace octavo
