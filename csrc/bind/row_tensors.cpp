// Binds the tensors that rows are made of, and checks that all that is read lies inside them.
#include "bind/row_tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind/parts.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

using Array = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool is_so, const char* what) {
  if (!is_so) throw std::invalid_argument(std::string("tensors of rows: ") + what);
}

template <class Given>
Plane plane_of(const Given& array) {
  const auto size = static_cast<int64_t>(array.itemsize());
  return {static_cast<const uint8_t*>(static_cast<const void*>(array.data())),
          {array.stride(0) * size, array.stride(1) * size}};
}

const int64_t* indices_of(const std::optional<Indices>& array, int count) {
  if (!array) return nullptr;
  const int64_t *first = array->data(), *end = first + array->size();
  require(static_cast<int64_t>(array->size()) == count, "an index is needed for each input");
  const auto is_outside = [count](int64_t index) { return index < 0 || index >= count; };
  require(std::none_of(first, end, is_outside), "an index is outside the inputs");
  return first;
}

// Scales or zero points [rows, groups of the file].
template <class Given>
void check_groups(const GroupTensors& from, const Given& array, int64_t rows) {
  const int64_t last = int64_t{from.end_group - 1} * from.group / from.scale_group;
  require(static_cast<int64_t>(array.shape(0)) >= rows, "rows without scales");
  require(static_cast<int64_t>(array.shape(1)) > last, "groups without scales");
}

void check_codes(const GroupTensors& from, const Array& codes) {
  const auto second = static_cast<int64_t>(codes.shape(1));
  require(from.bits >= (from.order == CodeOrder::Parts ? 1 : 2) && from.bits <= 8,
          "codes have 2 to 8 bits, in words of several parts 1 to 8");
  if (from.order == CodeOrder::Parts) {
    require(from.word_bytes == 4 || from.word_bytes == 1, "words have 8 or 32 bits");
    require(from.parts * from.bits <= 8 * from.word_bytes, "too many parts for a word");
    require(second >= from.scale_group && from.codes.strides[1] == from.word_bytes,
            "the words of a group follow each other");
    require(from.inputs % from.scale_group == 0 && from.scale_group % from.group == 0,
            "groups are whole");
  } else if (from.order == CodeOrder::EightOutputs) {
    require(from.word_bytes == 4 && from.bits == 4, "words of eight outputs have 32 bits");
    require(second >= from.inputs, "too few inputs");
  } else {
    require(from.word_bytes == 4 || from.word_bytes == 1, "words have 8 or 32 bits");
    require(second * from.word_bytes * 8 >= int64_t{from.inputs} * from.bits, "too few words");
  }
  require(from.flipped == 0 || from.bits == 8 || from.bits == 4,
          "only codes of four and eight bits can be inverted");
}

void check_window(const GroupTensors& from) {
  require(from.inputs > 0 && from.group > 0 && from.scale_group > 0 && from.scale_outputs > 0,
          "sizes are above zero");
  const int64_t groups = (int64_t{from.inputs} + from.group - 1) / from.group;
  require(0 <= from.first_group && from.first_group < from.end_group && from.end_group <= groups,
          "no such groups");
  require(from.has_values || from.group * from.bits % 8 == 0, "groups are whole bytes");
}

bool is_float_array(const Array& array, Stored type) {
  const bool is_wide = type == Stored::F32;
  return (is_wide || type == Stored::F16 || type == Stored::BF16) &&
         array.itemsize() == (is_wide ? 4 : 2);
}

void make(RowTensors* self, int inputs, const Array& codes, bool is_of_eight, int parts, int bits,
          uint8_t flipped, const Array& scales, Stored scale_type, int scale_outputs,
          int scale_group, const std::optional<Array>& zeros,
          const std::optional<Stored>& zero_type, uint8_t middle, bool has_zeros,
          bool zeros_are_values, const std::optional<Indices>& columns, int group, int first_group,
          int end_group, bool has_values, const std::optional<Table>& table,
          const std::optional<Indices>& places) {
  GroupTensors from{};
  from.inputs = inputs;
  from.codes = plane_of(codes);
  from.order = parts ? CodeOrder::Parts
               : is_of_eight ? CodeOrder::EightOutputs : CodeOrder::Inputs;
  from.parts = parts;
  from.part = static_cast<int64_t>(codes.shape(0));
  from.word_bytes = static_cast<int>(codes.itemsize());
  from.bits = bits;
  from.flipped = flipped;
  from.scales = plane_of(scales);
  from.scale_type = scale_type;
  from.scale_outputs = scale_outputs;
  from.scale_group = scale_group;
  from.middle = middle;
  from.has_zeros = has_zeros;
  from.zeros_are_values = zeros_are_values;
  from.group = group;
  from.first_group = first_group;
  from.end_group = end_group;
  from.has_values = has_values;
  check_window(from);
  check_codes(from, codes);
  int64_t rows = from.part * (is_of_eight ? 8 : 1);
  if (parts) {  // the last part may be filled up
    require(!columns, "words of several parts are in order");
    const auto scaled = static_cast<int64_t>(scales.shape(0)) * scale_outputs;
    rows = std::min(from.part * parts / (inputs / scale_group), scaled);
  }
  require(rows <= INT32_MAX, "too many rows");
  require(is_float_array(scales, scale_type), "scales are of another type");
  check_groups(from, scales, (rows + scale_outputs - 1) / scale_outputs);
  if (zeros) {
    require(zero_type ? is_float_array(*zeros, *zero_type) : zeros->itemsize() == 1,
            "zero points are of another type");
    from.zeros = plane_of(*zeros);
    from.zeros_are_bytes = !zero_type;
    from.zero_type = zero_type.value_or(Stored::F32);
    check_groups(from, *zeros, rows);
  }
  from.columns = indices_of(columns, inputs);
  require(!table || table->size() == size_t{1} << bits, "a table has a value for each code");
  if (table) from.table = table->data();
  const int64_t end = std::min<int64_t>(int64_t{end_group} * group, inputs);
  from.places = indices_of(places, static_cast<int>(end - int64_t{first_group} * group));
  new (self) RowTensors{from, static_cast<int>(rows)};
}

}  // namespace

std::vector<RowPlace> row_places(const uint64_t* numbers, size_t count,
                                 const std::vector<const RowTensors*>& tensors, size_t row_bytes) {
  for (const RowTensors* each : tensors) {
    require(made_row_bytes(each->made_of) == row_bytes, "rows of another type or length");
  }
  std::vector<RowPlace> places(count, RowPlace{-1, 0});
  for (size_t i = 0; i < count; i++) {
    if (numbers[i] == 0) continue;
    const uint64_t which = (numbers[i] >> 32) - 1, row = numbers[i] & UINT32_MAX;
    require(which < tensors.size(), "no such tensors");
    require(row < static_cast<uint64_t>(tensors[which]->rows), "no such row");
    places[i] = {static_cast<int32_t>(which), static_cast<int32_t>(row)};
  }
  return places;
}

void bind_row_tensors(nb::module_& m) {
  nb::class_<RowTensors>(m, "RowTensors")
      .def("__init__", &make, nb::kw_only(), "inputs"_a, "codes"_a, "is_of_eight"_a, "parts"_a,
           "bits"_a, "flipped"_a, "scales"_a, "scale_type"_a, "scale_outputs"_a, "scale_group"_a,
           "zeros"_a.none(), "zero_type"_a.none(), "middle"_a, "has_zeros"_a,
           "zeros_are_values"_a, "columns"_a.none(), "group"_a, "first_group"_a, "end_group"_a,
           "has_values"_a, "table"_a.none(), "places"_a.none(), nb::keep_alive<1, 3>(),
           nb::keep_alive<1, 8>(), nb::keep_alive<1, 12>(), nb::keep_alive<1, 17>(),
           nb::keep_alive<1, 22>(), nb::keep_alive<1, 23>());  // the arrays, counted from self
}

}  // namespace octavo
