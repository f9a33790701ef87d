// Binds single attention kernels, for tests and benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <barrier>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "bind/test/parts.h"
#include "program/attention_plan.h"
#include "program/kv_cache.h"
#include "runtime/processor.h"
#include "runtime/workers.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
using Floats = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
std::unique_ptr<T[], Free> aligned(size_t count) {
  const size_t bytes = (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
  void* memory = std::aligned_alloc(kAlign, bytes ? bytes : kAlign);
  if (!memory) throw std::bad_alloc();
  return std::unique_ptr<T[], Free>(static_cast<T*>(memory));
}

CacheFormat format_named(const std::string& name) {
  if (name == "f32") return CacheFormat::F32;
  if (name == "bf16") return CacheFormat::BF16;
  if (name == "int8") return CacheFormat::Int8;
  if (name == "e4m3") return CacheFormat::E4M3;
  if (name == "e5m2") return CacheFormat::E5M2;
  if (name == "int4") return CacheFormat::Int4;
  throw std::invalid_argument("there is no KV cache format '" + name + "'");
}

// A KV cache of one layer, laid out like the engine's, with the kernels of one tier.
class TestCache {
 public:
  TestCache(const std::string& tier, const std::string& format, int num_blocks, int block_size,
            int kv_heads, int head_dim, int latent)
      : kernels_(choose_tier(tier)) {
    const int arrays = latent ? 1 : 2;
    const size_t cells = arrays * size_t(num_blocks) * block_size * kv_heads;
    cache_.format = format_named(format);
    const size_t cell = cell_bytes(cache_.format, head_dim);
    bytes_ = cells * cell;
    num_scales_ = has_scales(cache_.format) ? cells : 0;
    cells_ = aligned<uint8_t>(bytes_);
    scales_ = aligned<float>(num_scales_);
    std::fill_n(cells_.get(), bytes_, uint8_t{0});
    std::fill_n(scales_.get(), num_scales_, 0.0f);
    cache_.keys = cells_.get();
    const int values = latent ? 0 : block_size;  // of latent rows, they are a part of the keys
    cache_.values = cells_.get() + values * cell;
    if (num_scales_) {
      cache_.key_scales = scales_.get();
      cache_.value_scales = scales_.get() + values;
    }
    cache_.block_size = block_size;
    cache_.kv_heads = kv_heads;
    cache_.head_dim = head_dim;
    cache_.latent = latent;
    cache_.head_cells = latent ? 0 : 2 * block_size;
    cache_.block_cells = arrays * int64_t{kv_heads} * block_size;
  }

  void write(Rows k, Rows v, int first_row, int rows, int first_position, Table table) {
    kernels_.write_kv(cache_, k.data(), v.data(), k.shape(1),
                      {first_row, rows, first_position, table.data()});
  }

  // All of them: [block][KV head][keys, values][token].
  Bytes cells() { return Bytes(cells_.get(), {bytes_}, nb::find(this)); }
  Floats scales() { return Floats(scales_.get(), {num_scales_}, nb::find(this)); }

  const KernelTable& kernels_;
  Cache cache_{};

 private:
  size_t bytes_, num_scales_;
  std::unique_ptr<uint8_t[], Free> cells_;
  std::unique_ptr<float[], Free> scales_;
};

AttentionShape shape_of(const Cache& cache, int heads, float scale, float softcap, int window,
                        const nb::object& sinks) {
  const float* values = sinks.is_none() ? nullptr : nb::cast<Vector>(sinks).data();
  return {heads,  cache.kv_heads, cache.head_dim, scale, softcap, window,
          values, false,          nullptr,        0,     cache.latent};
}

// Runs one item, and writes its result to out.
void attend_item(TestCache& cache, Rows q, Rows out, int heads, float scale, float softcap,
                 int window, nb::object sinks, int first_row, int first_position, Table table,
                 int first, int rows, int kv_head, int first_split, int end_split) {
  const AttentionShape shape = shape_of(cache.cache_, heads, scale, softcap, window, sinks);
  auto scratch = aligned<uint8_t>(cache.kernels_.attention_scratch(shape));
  const AttentionPart part{{first_row + first, rows, first_position + first, table.data()},
                           kv_head, first_split, end_split};
  cache.kernels_.attention(cache.cache_, shape, part, nullptr, q.data(), q.shape(1), out.data(),
                           out.shape(1), nullptr, scratch.get());
}

// Runs all sequences by a plan for `planned` threads, `repeats` times, with `threads` threads.
// Returns (items, floats of partial sums, items that a thread takes at a time).
std::tuple<size_t, size_t, int> attend(TestCache& cache, Rows q, Rows out, int heads, float scale,
                                 float softcap, int window, nb::object sinks,
                                 std::vector<int> first_rows, std::vector<int> rows,
                                 std::vector<int> first_positions, std::vector<Table> tables,
                                 int planned, int threads, int repeats) {
  const AttentionShape shape = shape_of(cache.cache_, heads, scale, softcap, window, sinks);
  std::vector<SequenceRows> sequences;
  for (size_t i = 0; i < rows.size(); ++i)
    sequences.push_back({first_rows[i], rows[i], first_positions[i], tables[i].data()});
  AttentionPlan plan;
  plan.make(cache.kernels_, shape, {sequences.data()}, static_cast<int>(sequences.size()),
            cache.cache_.block_size, planned);
  auto partials = aligned<float>(plan.partial_floats());
  const AttentionCall call{&cache.kernels_, cache.cache_, shape,      sequences.data(),
                           q.data(),        q.shape(1),   out.data(), out.shape(1),
                           partials.get()};
  nb::gil_scoped_release released;
  Shares shares(threads);
  std::barrier barrier(threads);
  const int count = static_cast<int>(plan.items().size());
  const auto work = [&] {
    auto scratch = aligned<uint8_t>(cache.kernels_.attention_scratch(shape));
    for (int i = 0; i < repeats; ++i) {
      const auto run = [&](int index, int coming) {
        plan.run_item(index, coming, call, scratch.get());
      };
      shares.take_next(count, i + 1, plan.run(), run);
      barrier.arrive_and_wait();
    }
  };
  std::vector<std::jthread> team;
  for (int i = 1; i < threads; ++i) team.emplace_back(work);
  work();
  return {plan.items().size(), plan.partial_floats(), plan.run()};
}

}  // namespace

void bind_test_attention(nb::module_& m) {
  nb::class_<TestCache>(m, "TestCache")
      .def(nb::init<const std::string&, const std::string&, int, int, int, int, int>(), "tier"_a,
           "format"_a, "num_blocks"_a, "block_size"_a, "kv_heads"_a, "head_dim"_a, "latent"_a = 0)
      .def("write", &TestCache::write)
      .def("cells", &TestCache::cells)
      .def("scales", &TestCache::scales);
  m.def("attend_item", &attend_item, "cache"_a, "q"_a, "out"_a, "heads"_a, "scale"_a, "softcap"_a,
        "window"_a, "sinks"_a.none(), "first_row"_a, "first_position"_a, "table"_a, "first"_a,
        "rows"_a, "kv_head"_a, "first_split"_a, "end_split"_a);
  m.def("attend", &attend, "cache"_a, "q"_a, "out"_a, "heads"_a, "scale"_a, "softcap"_a,
        "window"_a, "sinks"_a.none(), "first_rows"_a, "rows"_a, "first_positions"_a, "tables"_a,
        "planned"_a, "threads"_a, "repeats"_a = 1);
}

}  // namespace octavo
