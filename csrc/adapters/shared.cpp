// Adapters in the memory of ranks: the first one packs each, and the others find it there.
//
// What says where the numbers of an adapter are is written behind them, with places in that memory
// in place of pointers, since each process has it at another address.
#include <cstring>
#include <utility>

#include "adapters/packed_adapter.h"

namespace octavo {

namespace {

// Writes lists of structs, or counts their bytes where there is no memory to write to.
struct ListWriter {
  const Ranks& ranks;
  uint8_t* to = nullptr;
  size_t bytes = 0;

  template <typename T, typename Places>
  void operator()(const std::vector<T>& list, Places places) {
    const uint64_t count = list.size();
    put(&count, sizeof count);
    for (T each : list) {
      if (to) places(each, *this);
      put(&each, sizeof each);
    }
  }

  template <typename T>
  void place(const T*& pointer) const {
    if (pointer) pointer = reinterpret_cast<const T*>(ranks.offset_of(pointer));
  }

 private:
  void put(const void* from, size_t size) {
    if (to) std::memcpy(to + bytes, from, size);
    bytes += size;
  }
};

struct ListReader {
  const Ranks& ranks;
  const uint8_t* from;

  template <typename T, typename Places>
  void operator()(std::vector<T>& list, Places places) {
    uint64_t count;
    take(&count, sizeof count);
    list.resize(count);
    for (T& each : list) {
      take(&each, sizeof each);
      places(each, *this);
    }
  }

  template <typename T>
  void place(const T*& pointer) const {
    if (pointer)
      pointer = reinterpret_cast<const T*>(ranks.at(reinterpret_cast<uintptr_t>(pointer)));
  }

 private:
  void take(void* to, size_t size) {
    std::memcpy(to, from, size);
    from += size;
  }
};

}  // namespace

template <typename Each>
void PackedAdapter::for_each_list(Each& each) {
  each(downs_, [](Down& down, const auto& of) {
    of.place(down.data);
    of.place(down.scales);
  });
  each(ups_, [](Up& up, const auto&) { up.halves = nullptr; });  // as the next ones are in memory
  halves_.resize(ups_.size());
  for (std::vector<UpHalf>& halves : halves_)
    each(halves, [](UpHalf& half, const auto& of) {
      of.place(half.data);
      of.place(half.magnitudes);
      of.place(half.bias);
    });
  each(wholes_, [](AdapterWhole& whole, const auto& of) {
    of.place(whole.matrix.data);
    of.place(whole.bias);
  });
  each(lows_, [](Lows& lows, const auto& of) { of.place(lows.data); });
}

void PackedAdapter::make_memory(size_t bytes, Ranks* ranks) {
  if (ranks) {
    ListWriter counted{*ranks};
    for_each_list(counted);
    lists_ = bytes;
    bytes += counted.bytes;
  }
  memory_ = pages_to_return(ranks, bytes, are_huge(bytes));
}

void PackedAdapter::write_lists(const Ranks& ranks) {
  ListWriter writer{ranks, memory_.data() + lists_};
  for_each_list(writer);
  place_ = ranks.offset_of(memory_.data() + lists_);
}

PackedAdapter::PackedAdapter(const Ranks& ranks, uint64_t place) : place_(place) {
  ListReader reader{ranks, ranks.at(place)};
  for_each_list(reader);
  for (size_t matrix = 0; matrix < ups_.size(); ++matrix)
    ups_[matrix].halves = halves_[matrix].data();
}

}  // namespace octavo
