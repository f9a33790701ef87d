// Packs an adapter's matrices as the kernels read them.
#include "adapters/packed_adapter.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace octavo {

namespace {

constexpr int kHalfPanel = kPanel / 2;

size_t number_bytes(Format format) { return format == Format::F32 ? 4 : 2; }

int rounded_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

// One rank's numbers into its rows of the blocks, which are `block_bytes` apart.
void write_rank(Format format, const uint8_t* from, int inputs, size_t block_bytes, uint8_t* to) {
  for (int first = 0; first < inputs; first += kDownInputs, to += block_bytes) {
    const int count = std::min(kDownInputs, inputs - first);
    if (format != Format::BF16) {
      std::memcpy(to, from + first * number_bytes(format), count * number_bytes(format));
      continue;
    }
    uint16_t numbers[kDownInputs] = {}, pairs[kDownInputs];
    std::memcpy(numbers, from + first * sizeof(uint16_t), count * sizeof(uint16_t));
    for (int i = 0; i < kDownInputs / 2; ++i) {
      pairs[2 * i] = numbers[i];
      pairs[2 * i + 1] = numbers[i + kDownInputs / 2];
    }
    std::memcpy(to, pairs, sizeof pairs);
  }
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

}  // namespace

PackedAdapter::PackedAdapter(const std::vector<AdaptedProduct>& products,
                             const std::vector<AdapterParts>& parts) {
  size_t matrices = 0;
  for (size_t number = 0; number < products.size(); ++number) {
    std::vector<float> scales;
    for (const AdapterDown& down : parts[number].downs)
      scales.insert(scales.end(), down.rank, down.scale);
    Down down{nullptr, products[number].inputs, static_cast<int32_t>(scales.size()),
              parts[number].format, nullptr};
    scales.resize(rounded_up(down.ranks, kDownRanks));
    scales_.push_back(std::move(scales));
    down.scales = scales_.back().data();
    downs_.push_back(down);
    matrices += products[number].outputs.size();
  }
  halves_.resize(matrices);
  for (const bool writes : {false, true}) {
    if (writes) memory_ = Pages(taken_, are_huge(taken_));
    taken_ = 0;
    size_t matrix = 0;
    for (size_t number = 0; number < products.size(); ++number) {
      pack_down(products[number], parts[number], downs_[number]);
      for (const std::vector<int32_t>& outputs : products[number].outputs)
        pack_up(products[number], parts[number], outputs, halves_[matrix++]);
    }
  }
  size_t matrix = 0;
  for (size_t number = 0; number < products.size(); ++number)
    for (size_t each = 0; each < products[number].outputs.size(); ++each)
      ups_.push_back({halves_[matrix++].data(), parts[number].format});
}

size_t PackedAdapter::bytes() const {
  size_t bytes = memory_.bytes() + downs_.size() * sizeof(Down) + ups_.size() * sizeof(Up);
  for (const std::vector<UpHalf>& halves : halves_) bytes += halves.size() * sizeof(UpHalf);
  for (const std::vector<float>& scales : scales_) bytes += scales.size() * sizeof(float);
  return bytes;
}

uint8_t* PackedAdapter::take(size_t bytes) {
  uint8_t* at = memory_.data() ? memory_.data() + taken_ : nullptr;
  taken_ += (bytes + kAlign - 1) / kAlign * kAlign;
  return at;
}

void PackedAdapter::pack_down(const AdaptedProduct& product, const AdapterParts& parts,
                              Down& down) {
  const size_t number = number_bytes(parts.format), rank_bytes = kDownInputs * number;
  const size_t block_bytes = kDownRanks * rank_bytes;
  const size_t tile_bytes = rounded_up(product.inputs, kDownInputs) / kDownInputs * block_bytes;
  uint8_t* data = take(rounded_up(down.ranks, kDownRanks) / kDownRanks * tile_bytes);
  down.data = data;
  if (!data) return;
  int rank = 0;
  for (const AdapterDown& each : parts.downs)
    for (int k = 0; k < each.rank; ++k, ++rank)
      write_rank(parts.format, each.numbers + static_cast<size_t>(k) * product.inputs * number,
                 product.inputs, block_bytes,
                 data + rank / kDownRanks * tile_bytes + rank % kDownRanks * rank_bytes);
}

const float* PackedAdapter::pack_outputs(const AdaptedProduct& product, const AdapterParts& parts,
                                         const int32_t* outputs, int count,
                                         const float* AdapterUp::*numbers, float otherwise) {
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
  uint8_t* data = take(sizeof made);
  if (data) std::memcpy(data, made, sizeof made);
  return reinterpret_cast<const float*>(data);
}

void PackedAdapter::pack_up(const AdaptedProduct& product, const AdapterParts& parts,
                            const std::vector<int32_t>& outputs, std::vector<UpHalf>& halves) {
  const size_t number = number_bytes(parts.format);
  const auto write = parts.format == Format::F32   ? write_column<uint32_t>
                     : parts.format == Format::F16 ? write_column<uint16_t>
                                                   : write_pairs;
  const int rows = static_cast<int>(outputs.size());
  halves.assign(rounded_up(rows, kPanel) / kHalfPanel, {});
  for (int begin = 0; begin < rows; begin += kHalfPanel) {
    const int count = std::min(kHalfPanel, rows - begin);
    UpHalf& half = halves[begin / kHalfPanel];
    half.magnitudes = pack_outputs(product, parts, outputs.data() + begin, count,
                                   &AdapterUp::magnitudes, 1.0f);
    half.bias = pack_outputs(product, parts, outputs.data() + begin, count, &AdapterUp::bias, 0.0f);
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
    uint8_t* data = take(rounded_up(end - first, 2) * kHalfPanel * number);
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
