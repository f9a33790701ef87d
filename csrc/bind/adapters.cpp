// Binds adapters, packed for the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/parts.h"
#include "adapters/packed_adapter.h"
#include "runtime/team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

using IntArray = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// (address, rank, scale), and (address, which of the first matrices, addresses of magnitudes and
// biases).
using First = std::tuple<uintptr_t, int32_t, float>;
using Second = std::tuple<uintptr_t, int32_t, uintptr_t, uintptr_t>;

// The products of a model that adapters may change.
struct AdaptedProducts {
  std::shared_ptr<Team> team;  // of the programs that read the adapters
  std::vector<AdaptedProduct> all;

  void add(int32_t inputs, std::vector<int32_t> part_ends, const std::vector<IntArray>& outputs,
           bool is_lookup) {
    AdaptedProduct product{inputs, std::move(part_ends), {}, is_lookup};
    for (const IntArray& of_matrix : outputs) {
      product.outputs.emplace_back(of_matrix.data(), of_matrix.data() + of_matrix.size());
      for (const int32_t output : product.outputs.back())
        if (product.part_ends.empty() || output >= product.part_ends.back())
          throw std::invalid_argument("an output is in no part");
    }
    all.push_back(std::move(product));
  }
};

AdapterParts parts_of(Format format, const std::vector<First>& downs,
                      const std::vector<Second>& ups) {
  AdapterParts parts{format, {}, {}, {}};
  for (const auto& [address, rank, scale] : downs)
    parts.downs.push_back({reinterpret_cast<const uint8_t*>(address), rank, scale});
  for (const auto& [address, down, magnitudes, bias] : ups) {
    if (address && (down < 0 || down >= static_cast<int32_t>(downs.size())))
      throw std::invalid_argument("a second matrix is behind none of the first");
    parts.ups.push_back({reinterpret_cast<const uint8_t*>(address), down,
                         reinterpret_cast<const float*>(magnitudes),
                         reinterpret_cast<const float*>(bias)});
  }
  return parts;
}

}  // namespace

void bind_adapters(nb::module_& m) {
  nb::class_<AdapterParts>(m, "AdapterParts")
      .def("__init__", [](AdapterParts* self, Format format, const std::vector<First>& downs,
                          const std::vector<Second>& ups) {
        new (self) AdapterParts(parts_of(format, downs, ups));
      }, "format"_a, "downs"_a, "ups"_a)
      // The matrix is copied; its bias has an address, or 0.
      .def("set_whole", [](AdapterParts& self, const Matrix& matrix, uintptr_t bias) {
        self.whole = {matrix, reinterpret_cast<const float*>(bias)};
      }, "matrix"_a, "bias"_a);
  nb::class_<OwnedAdapter>(m, "PackedAdapter")
      .def_prop_ro("num_bytes", [](const OwnedAdapter& self) { return self.adapter->bytes(); });
  nb::class_<AdaptedProducts>(m, "AdaptedProducts")
      .def("__init__", [](AdaptedProducts* self, std::shared_ptr<Team> team) {
        new (self) AdaptedProducts{std::move(team), {}};
      }, "team"_a)
      .def("add", &AdaptedProducts::add, "inputs"_a, "part_ends"_a, "outputs"_a,
           "is_lookup"_a = false)
      // The numbers at the addresses are copied; their owners must live until then.
      .def("pack", [](const AdaptedProducts& self, const std::vector<AdapterParts>& parts,
                      int threads) {
        if (parts.size() != self.all.size())
          throw std::invalid_argument("an adapter has parts for each product");
        for (size_t number = 0; number < parts.size(); ++number)
          if (!parts[number].ups.empty() &&
              parts[number].ups.size() != self.all[number].part_ends.size())
            throw std::invalid_argument("a product has another number of parts");
        const nb::gil_scoped_release released;
        return OwnedAdapter{std::make_shared<const PackedAdapter>(
            self.all, parts, threads, self.team->ranks())};
      }, "parts"_a, "threads"_a);
}

}  // namespace octavo
