// Packs an adapter's matrices as the kernels read them.
#include "adapters/packed_adapter.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

namespace octavo {

namespace {

constexpr int kHalfPanel = kPanel / 2;

size_t number_bytes(Format format) { return format == Format::F32 ? 4 : 2; }

int rounded_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

// A rank's numbers for one block of inputs.
template <class Word>
struct DownBlock {
  Word numbers[kDownInputs] = {};

  void write(bool in_pairs, uint8_t* to) const {
    if (!in_pairs) {
      std::memcpy(to, numbers, sizeof numbers);
      return;
    }
    constexpr int kApart = kDownInputs / 2;
    uint32_t pairs[kApart];
    for (int i = 0; i < kApart; ++i)
      pairs[i] = numbers[i] | static_cast<uint32_t>(numbers[i + kApart]) << 16;
    std::memcpy(to, pairs, sizeof pairs);
  }
};

// One rank's numbers into its rows of the blocks, which are `block_bytes` apart.
template <class Word>
void write_rank(bool in_pairs, const uint8_t* from, int inputs, size_t block_bytes, uint8_t* to) {
  DownBlock<Word> block;
  int first = 0;
  for (; first + kDownInputs <= inputs; first += kDownInputs, to += block_bytes) {
    std::memcpy(block.numbers, from + first * sizeof(Word), sizeof block.numbers);
    block.write(in_pairs, to);
  }
  if (first == inputs) return;
  block = {};
  std::memcpy(block.numbers, from + first * sizeof(Word), (inputs - first) * sizeof(Word));
  block.write(in_pairs, to);
}

// An output's numbers, of low number `first` and those behind it, into its column.
template <class Word>
void write_column(const uint8_t* row, int rank, int first, int column, uint8_t* to) {
  for (int k = 0; k < rank; ++k)
    std::memcpy(to + ((first + k) * kHalfPanel + column) * sizeof(Word), row + k * sizeof(Word),
                sizeof(Word));
}

// The same in pairs of low numbers.
void write_pairs(const uint8_t* row, int rank, int first, int column, uint8_t* to) {
  constexpr size_t kNumber = sizeof(uint16_t);
  const auto place = [&](int at) {
    return to + (static_cast<size_t>(at / 2 * kHalfPanel + column) * 2 + at % 2) * kNumber;
  };
  int k = 0;
  if (first % 2 == 0)
    for (; k + 2 <= rank; k += 2) std::memcpy(place(first + k), row + k * kNumber, 2 * kNumber);
  for (; k < rank; ++k) std::memcpy(place(first + k), row + k * kNumber, kNumber);
}

// The part that an output belongs to; its first output goes to `before`.
const AdapterUp& part_of(const AdaptedProduct& product, const AdapterParts& parts, int32_t output,
                         int& before) {
  size_t part = 0;
  while (output >= product.part_ends[part]) ++part;
  before = part > 0 ? product.part_ends[part - 1] : 0;
  return parts.ups[part];
}

// Where an output's row of the second matrix is.
struct Place {
  const uint8_t* numbers = nullptr;  // nullptr: the adapter has none for it
  int first = 0;                     // its first low number
  int rank = 0;
};

Place place_of(const AdaptedProduct& product, const AdapterParts& parts, int32_t output) {
  if (output < 0 || parts.ups.empty()) return {};
  int before, first = 0;
  const AdapterUp& up = part_of(product, parts, output, before);
  if (!up.numbers) return {};
  const int rank = parts.downs[up.down].rank;
  for (int down = 0; down < up.down; ++down) first += parts.downs[down].rank;
  const size_t row_bytes = rank * number_bytes(parts.format);
  return {up.numbers + static_cast<size_t>(output - before) * row_bytes, first, rank};
}

// The places of some outputs, which mostly are neighbours of one part.
void find_places(const AdaptedProduct& product, const AdapterParts& parts, const int32_t* outputs,
                 int count, Place* places) {
  const Place first = place_of(product, parts, outputs[0]);
  const Place last = place_of(product, parts, outputs[count - 1]);
  const size_t row_bytes = first.rank * number_bytes(parts.format);
  bool are_neighbours = first.numbers && last.numbers == first.numbers + (count - 1) * row_bytes;
  for (int column = 1; column < count; ++column)
    are_neighbours = are_neighbours && outputs[column] == outputs[0] + column;
  for (int column = 0; column < count; ++column)
    places[column] = are_neighbours
                         ? Place{first.numbers + column * row_bytes, first.first, first.rank}
                         : place_of(product, parts, outputs[column]);
}

// Calls work(number) for each number below `count`, in so many threads.
template <class Work>
void divide(size_t count, int threads, Work work) {
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t number; (number = next.fetch_add(1)) < count;) work(number);
  };
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    while (static_cast<int>(others.size()) + 1 < threads) others.emplace_back(take);
  } catch (const std::system_error&) {
    // The system allows no more.
  }
  take();
  for (std::thread& other : others) other.join();
}

// The second matrix of a table's pair as a first one: it makes addends of the rows' low numbers.
AdaptedProduct turned(const AdaptedProduct& lookup, const AdapterParts& parts) {
  AdaptedProduct product;
  product.inputs = parts.downs.empty() ? 0 : parts.downs[0].rank;
  product.part_ends = lookup.part_ends;
  return product;
}

AdapterParts turned_parts(const AdaptedProduct& lookup, const AdapterParts& parts) {
  AdapterParts made;
  made.format = parts.format;
  if (!parts.downs.empty())
    made.downs.push_back({parts.ups[0].numbers, lookup.part_ends[0], parts.downs[0].scale});
  return made;
}

}  // namespace

PackedAdapter::PackedAdapter(const std::vector<AdaptedProduct>& products,
                             const std::vector<AdapterParts>& parts, int threads, Ranks* ranks) {
  for (size_t number = 0; number < products.size(); ++number) {
    const bool is_lookup = products[number].is_lookup;
    const AdaptedProduct product =
        is_lookup ? turned(products[number], parts[number]) : products[number];
    const AdapterParts of_product =
        is_lookup ? turned_parts(products[number], parts[number]) : parts[number];
    int32_t of_all = 0;
    for (const AdapterDown& down : of_product.downs) of_all += down.rank;
    downs_.push_back({nullptr, product.inputs, of_all, of_product.format, nullptr});
    begins_.push_back({halves_.size(), 0});
    for (const std::vector<int32_t>& outputs : products[number].outputs)
      halves_.emplace_back(rounded_up(static_cast<int>(outputs.size()), kPanel) / kHalfPanel);
  }
  wholes_.resize(products.size());
  lows_.resize(products.size());
  divide(products.size(), threads, [&](size_t number) {
    Room counted;
    pack_product(products[number], parts[number], number, counted);
    begins_[number].taken = counted.taken;
  });
  size_t taken = 0;
  for (Begin& begin : begins_) taken += std::exchange(begin.taken, taken);
  size_t matrix = 0;
  for (size_t number = 0; number < products.size(); ++number)
    for (size_t each = 0; each < products[number].outputs.size(); ++each)
      ups_.push_back({halves_[matrix++].data(), parts[number].format});
  make_memory(taken, ranks);
  divide(products.size(), threads, [&](size_t number) {
    Room room{memory_.data(), begins_[number].taken};
    pack_product(products[number], parts[number], number, room);
  });
  if (ranks) write_lists(*ranks);
}

size_t PackedAdapter::bytes() const {
  size_t bytes = memory_.bytes() + downs_.size() * sizeof(Down) + ups_.size() * sizeof(Up) +
                 wholes_.size() * sizeof(AdapterWhole) + lows_.size() * sizeof(Lows);
  for (const std::vector<UpHalf>& halves : halves_) bytes += halves.size() * sizeof(UpHalf);
  return bytes;
}

uint8_t* PackedAdapter::Room::take(size_t bytes) {
  uint8_t* at = data ? data + taken : nullptr;
  taken += (bytes + kAlign - 1) / kAlign * kAlign;
  return at;
}

void PackedAdapter::pack_product(const AdaptedProduct& product, const AdapterParts& parts,
                                 size_t number, Room& room) {
  pack_whole(parts.whole, wholes_[number], room);
  if (product.is_lookup) return pack_lows(product, parts, number, room);
  pack_down(product, parts, downs_[number], room);
  size_t matrix = begins_[number].matrix;
  for (const std::vector<int32_t>& outputs : product.outputs)
    pack_up(product, parts, outputs, halves_[matrix++], room);
}

void PackedAdapter::pack_lows(const AdaptedProduct& product, const AdapterParts& parts,
                              size_t number, Room& room) {
  if (parts.downs.empty()) return;
  const size_t bytes =
      static_cast<size_t>(product.inputs) * parts.downs[0].rank * sizeof(float);
  uint8_t* data = room.take(bytes);
  if (data) std::memcpy(data, parts.downs[0].numbers, bytes);
  lows_[number] = {reinterpret_cast<const float*>(data), product.inputs};
  pack_down(turned(product, parts), turned_parts(product, parts), downs_[number], room);
}

void PackedAdapter::pack_whole(const AdapterWhole& from, AdapterWhole& to, Room& room) {
  if (!from.matrix.data) return;
  const size_t bytes = from.matrix.panel_bytes * num_panels(from.matrix);
  uint8_t* data = room.take(bytes);
  if (data) std::memcpy(data, from.matrix.data, bytes);
  to.matrix = from.matrix;
  to.matrix.data = data;
  if (!from.bias) return;
  const size_t bias_bytes = from.matrix.outputs * sizeof(float);
  uint8_t* bias = room.take(bias_bytes);
  if (bias) std::memcpy(bias, from.bias, bias_bytes);
  to.bias = reinterpret_cast<const float*>(bias);
}

void PackedAdapter::pack_down(const AdaptedProduct& product, const AdapterParts& parts,
                              Down& down, Room& room) {
  const size_t number = number_bytes(parts.format), rank_bytes = kDownInputs * number;
  const size_t block_bytes = kDownRanks * rank_bytes;
  const size_t tile_bytes = rounded_up(product.inputs, kDownInputs) / kDownInputs * block_bytes;
  uint8_t* data = room.take(rounded_up(down.ranks, kDownRanks) / kDownRanks * tile_bytes);
  const size_t scales_bytes = rounded_up(down.ranks, kDownRanks) * sizeof(float);
  auto* scales = reinterpret_cast<float*>(room.take(scales_bytes));
  down.data = data;
  down.scales = scales;
  if (!data) return;
  const auto write = parts.format == Format::F32 ? write_rank<uint32_t> : write_rank<uint16_t>;
  int rank = 0;
  for (const AdapterDown& each : parts.downs)
    for (int k = 0; k < each.rank; ++k, ++rank) {
      scales[rank] = each.scale;
      write(parts.format == Format::BF16,
            each.numbers + static_cast<size_t>(k) * product.inputs * number, product.inputs,
            block_bytes, data + rank / kDownRanks * tile_bytes + rank % kDownRanks * rank_bytes);
    }
}

const float* PackedAdapter::pack_outputs(const AdaptedProduct& product, const AdapterParts& parts,
                                         const int32_t* outputs, int count,
                                         const float* AdapterUp::*numbers, float otherwise,
                                         Room& room) {
  float made[kHalfPanel];
  std::fill_n(made, kHalfPanel, otherwise);
  bool are_there = false;
  for (int column = 0; column < count && !parts.ups.empty(); ++column) {
    if (outputs[column] < 0) continue;
    int before;
    const float* of_part = part_of(product, parts, outputs[column], before).*numbers;
    if (!of_part) continue;
    made[column] = of_part[outputs[column] - before];
    are_there = true;
  }
  if (!are_there) return nullptr;
  uint8_t* data = room.take(sizeof made);
  if (data) std::memcpy(data, made, sizeof made);
  return reinterpret_cast<const float*>(data);
}

void PackedAdapter::pack_up(const AdaptedProduct& product, const AdapterParts& parts,
                            const std::vector<int32_t>& outputs, std::vector<UpHalf>& halves,
                            Room& room) {
  const size_t number = number_bytes(parts.format);
  const auto write = parts.format == Format::F32   ? write_column<uint32_t>
                     : parts.format == Format::F16 ? write_column<uint16_t>
                                                   : write_pairs;
  const int rows = static_cast<int>(outputs.size());
  for (int begin = 0; begin < rows; begin += kHalfPanel) {
    const int count = std::min(kHalfPanel, rows - begin);
    UpHalf& half = halves[begin / kHalfPanel];
    half.magnitudes = pack_outputs(product, parts, outputs.data() + begin, count,
                                   &AdapterUp::magnitudes, 1.0f, room);
    half.bias = pack_outputs(product, parts, outputs.data() + begin, count, &AdapterUp::bias, 0.0f,
                             room);
    Place places[kHalfPanel];
    find_places(product, parts, outputs.data() + begin, count, places);
    int first = INT32_MAX, end = 0;
    for (int column = 0; column < count; ++column) {
      const Place& place = places[column];
      if (!place.numbers) continue;
      first = std::min(first, place.first);
      end = std::max(end, place.first + place.rank);
    }
    if (end == 0) continue;
    uint8_t* data = room.take(rounded_up(end - first, 2) * kHalfPanel * number);
    half.data = data;
    half.first = first;
    half.count = end - first;
    for (int column = 0; data && column < count; ++column) {
      const Place& place = places[column];
      if (place.numbers)
        write(place.numbers, place.rank, place.first - first, column, data);
    }
  }
}

}  // namespace octavo
