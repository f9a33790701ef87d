// Makes rows of a checkpoint's tensors, for a few panels at a time, and packs these.
//
// The speed of loading a model depends on this code: words of consecutive inputs are read where
// they lie; others are transposed for many outputs at once, as lines of the cache have many.
#include "pack/group_tensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/numbers.h"

namespace octavo {
namespace {

constexpr int kEight = 8;  // outputs of a word, and inputs whose codes of four bits fill one
// Added to the length of transposed rows: with lengths that are powers of two, the lines that are
// written in turn would share a few places of the cache.
constexpr size_t kLine = 64;

// The stored inputs of the rows that are made.
struct Window {
  int first;
  int end;
};

Window window_of(const GroupTensors& from) {
  return {from.first_group * from.group, std::min(from.end_group * from.group, from.inputs)};
}

// Rows of words with the codes of consecutive inputs; `skipped` are the bits before the first.
struct WordRows {
  const uint8_t* data;
  int64_t stride;
  int skipped;
};

// Words of a row that are written together, so that each row is turned to less often.
constexpr int kRun = 4;

// Copies words [row, word] to rows that are `stride` bytes apart.
template <class Word>
void gather(const Plane& from, int rows, int words, size_t stride, uint8_t* to) {
  for (int first = 0; first < words; first += kRun) {
    const int run = std::min(kRun, words - first);
    const uint8_t* at = from.at(0, first);
    uint8_t* out = to + first * sizeof(Word);
    for (int row = 0; row < rows; row++, at += from.strides[0], out += stride) {
      Word together[kRun];
      if (run == kRun) {
        for (int i = 0; i < kRun; i++) {
          std::memcpy(&together[i], at + i * from.strides[1], sizeof(Word));
        }
        std::memcpy(out, together, sizeof together);
      } else {
        for (int i = 0; i < run; i++) {
          std::memcpy(out + i * sizeof(Word), at + i * from.strides[1], sizeof(Word));
        }
      }
    }
  }
}

// Words of several eights of outputs, which are transposed together.
constexpr int kTogether = 8;
using Words = uint32_t __attribute__((vector_size(kTogether * sizeof(uint32_t))));

// Inputs whose words are fetched ahead: they lie too far apart for the processor to predict, and
// often a power of two, so that the first cache has no room for many of them.
constexpr int kAhead = 24;

// Exchanges the bits of `low` above `shift` with those of `high` below it, where the mask has them.
void exchange(Words& low, Words& high, int shift, uint32_t mask) {
  const Words changed = (low >> shift ^ high) & mask;
  low ^= changed << shift;
  high ^= changed;
}

// Turns eight inputs' words of eight outputs into eight outputs' words of eight inputs.
void transpose(Words* words) {
  for (int i = 0; i < 4; i++) exchange(words[i], words[i + 4], 16, 0x0000ffff);
  for (int i : {0, 1, 4, 5}) exchange(words[i], words[i + 2], 8, 0x00ff00ff);
  for (int i = 0; i < kEight; i += 2) exchange(words[i], words[i + 1], 4, 0x0f0f0f0f);
}

// The words of one input, of `count` eights of outputs.
Words read_eights(const Plane& codes, int eight, int count, int input) {
  Words words{};
  __builtin_prefetch(codes.at(eight, input + kAhead), 0, 2);
  if (count == kTogether && codes.strides[0] == sizeof words[0]) {
    std::memcpy(&words, codes.at(eight, input), sizeof words);
  } else {
    for (int i = 0; i < count; i++) {
      uint32_t word;
      std::memcpy(&word, codes.at(eight + i, input), sizeof word);
      words[i] = word;
    }
  }
  return words;
}

// One word of each row, from those of whole eights of outputs: `to` has a place for each of these.
void turn_eights(const GroupTensors& from, int first_eight, int end_eight, int word, uint32_t* to) {
  constexpr int kPlaces[kEight] = {0, 2, 4, 6, 1, 3, 5, 7};  // the output of each code of a word
  const int input = word * kEight, inputs = std::min(kEight, from.inputs - input);
  for (int eight = first_eight; eight < end_eight; eight += kTogether) {
    const int eights = std::min(kTogether, end_eight - eight);
    Words codes[kEight] = {};
    for (int i = 0; i < inputs; i++) codes[i] = read_eights(from.codes, eight, eights, input + i);
    transpose(codes);
    for (int place = 0; place < kEight; place++) {
      for (int i = 0; i < eights; i++) to[i * kEight + kPlaces[place]] = codes[place][i];
    }
    to += kTogether * kEight;
  }
}

// Rows of words, a run of words at a time.
void gather_eights(const GroupTensors& from, int first, int count, int first_word, int words,
                   size_t stride, uint8_t* to, std::vector<uint32_t>& turned) {
  const int first_eight = first / kEight, end_eight = (first + count + kEight - 1) / kEight;
  const size_t outputs = static_cast<size_t>(end_eight - first_eight) * kEight;
  turned.resize(kRun * outputs);
  for (int word = 0; word < words; word += kRun) {
    const int run = std::min(kRun, words - word);
    for (int i = 0; i < run; i++) {
      turn_eights(from, first_eight, end_eight, first_word + word + i, turned.data() + i * outputs);
    }
    const auto* rows = reinterpret_cast<const uint8_t*>(turned.data() + first % kEight);
    const Plane plane{rows, {sizeof(uint32_t), static_cast<int64_t>(outputs * sizeof(uint32_t))}};
    gather<uint32_t>(plane, count, run, stride, to + word * sizeof(uint32_t));
  }
}

WordRows read_words(const GroupTensors& from, Window inputs, int first, int count, RowRoom& room) {
  const int64_t word_bits = 8 * from.word_bytes;
  const int first_word = static_cast<int>(int64_t{inputs.first} * from.bits / word_bits);
  const int end_word =
      static_cast<int>((int64_t{inputs.end} * from.bits + word_bits - 1) / word_bits);
  const int skipped = static_cast<int>(int64_t{inputs.first} * from.bits - first_word * word_bits);
  const bool is_run = from.codes.strides[1] == from.word_bytes;
  if (from.order == CodeOrder::Inputs && is_run) {
    return {from.codes.at(first, first_word), from.codes.strides[0], skipped};
  }
  const int words = end_word - first_word;
  const size_t stride = static_cast<size_t>(words) * from.word_bytes + kLine;
  room.words.resize(stride * count);
  uint8_t* to = room.words.data();
  if (from.order == CodeOrder::EightOutputs) {
    gather_eights(from, first, count, first_word, words, stride, to, room.turned);
  } else {
    Plane mine = from.codes;
    mine.data = mine.at(first, first_word);
    const auto copy = from.word_bytes == 1 ? gather<uint8_t> : gather<uint32_t>;
    copy(mine, count, words, stride, to);
  }
  return {to, static_cast<int64_t>(stride), skipped};
}

// Codes of 2 to 8 bits as bytes, from the bit `at` on.
void split(const uint8_t* words, int64_t at, int bits, int count, uint8_t* out) {
  if (bits == 8) {
    std::memcpy(out, words + at / 8, count);
    return;
  }
  if (bits == 4 && at % 8 == 0) {
    for (int i = 0; i < count / 2; i++) {
      const uint8_t pair = words[at / 8 + i];
      out[2 * i] = pair & 15;
      out[2 * i + 1] = pair >> 4;
    }
    if (count % 2) out[count - 1] = words[at / 8 + count / 2] & 15;
    return;
  }
  const unsigned top = (1u << bits) - 1;
  for (int i = 0; i < count; i++, at += bits) {
    const uint8_t* byte = words + at / 8;
    const int shift = static_cast<int>(at % 8);
    unsigned code = *byte >> shift;
    if (shift + bits > 8) code |= static_cast<unsigned>(byte[1]) << (8 - shift);
    out[i] = static_cast<uint8_t>(code & top);
  }
}

int place_bits(const GroupTensors& from) { return from.bits <= 4 ? 4 : 8; }

// The codes of the inputs of a row, each in a byte, where words have those of several parts.
const uint8_t* in_bytes_of_parts(const GroupTensors& from, int row, RowRoom& room) {
  const Window made = window_of(from);
  room.codes.resize(made.end - made.first);
  const unsigned top = (1u << from.bits) - 1;
  const int64_t groups = from.inputs / from.scale_group;
  for (int input = made.first; input < made.end; input += from.group) {
    const int64_t group = row * groups + input / from.scale_group;
    const int shift = from.bits * static_cast<int>(from.parts - 1 - group / from.part);
    const uint8_t* words = from.codes.at(group % from.part, input % from.scale_group);
    uint8_t* out = room.codes.data() + (input - made.first);
    for (int i = 0; i < from.group; i++) {
      uint32_t word = 0;
      std::memcpy(&word, words + i * from.word_bytes, from.word_bytes);
      out[i] = static_cast<uint8_t>(word >> shift & top);
    }
  }
  return room.codes.data();
}

// The codes of the inputs that a row is made of, each in a byte, in the row's order.
const uint8_t* in_bytes(const GroupTensors& from, const uint8_t* words, int skipped, Window inputs,
                        RowRoom& room) {
  const Window made = window_of(from);
  const int read = inputs.end - inputs.first, count = made.end - made.first;
  room.codes.resize(static_cast<size_t>(read) + count);
  uint8_t* bytes = room.codes.data();
  split(words, skipped, from.bits, read, bytes);
  if (from.columns == nullptr) return bytes;
  uint8_t* in_order = bytes + read;
  for (int i = 0; i < count; i++) in_order[i] = bytes[from.columns[made.first + i]];
  return in_order;
}

// Joins bytes to pairs of codes, in their own memory.
void join_pairs(uint8_t* bytes, int count) {
  for (int i = 0; i < count / 2; i++) bytes[i] = bytes[2 * i] | bytes[2 * i + 1] << 4;
  if (count % 2) bytes[count / 2] = bytes[count - 1];
}

float number_at(const uint8_t* at, Stored type) {
  if (type == Stored::F32) {
    float number;
    std::memcpy(&number, at, sizeof number);
    return number;
  }
  uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return type == Stored::F16 ? half_to_float(half) : bf16_to_float(half);
}

float scale_at(const GroupTensors& from, int row, int group) {
  const int64_t input = int64_t{group} * from.group;
  const uint8_t* at = from.scales.at(row / from.scale_outputs, input / from.scale_group);
  return number_at(at, from.scale_type);
}

float zero_at(const GroupTensors& from, int row, int group) {
  if (from.zeros.data == nullptr) return from.middle;
  const uint8_t* at = from.zeros.at(row, int64_t{group} * from.group / from.scale_group);
  return from.zeros_are_bytes ? static_cast<float>(*at) : number_at(at, from.zero_type);
}

size_t group_code_bytes(const GroupTensors& from) {
  return static_cast<size_t>(from.group) * place_bits(from) / 8;
}

void flip(uint8_t* codes, size_t bytes, uint8_t flipped) {
  for (size_t i = 0; i < bytes; i++) codes[i] ^= flipped;
}

void write_groups(const GroupTensors& from, int row, const uint8_t* codes, uint8_t* to) {
  const size_t code_bytes = group_code_bytes(from);
  const Window made = window_of(from);
  size_t left = (static_cast<size_t>(made.end - made.first) * place_bits(from) + 7) / 8;
  for (int group = from.first_group; group < from.end_group; group++) {
    const float scale = scale_at(from, row, group);
    std::memcpy(to, &scale, sizeof scale);
    to += sizeof scale;
    if (from.has_zeros) {
      const float zero = zero_at(from, row, group);
      std::memcpy(to, &zero, sizeof zero);
      to += sizeof zero;
    }
    const size_t bytes = std::min(left, code_bytes);
    std::memcpy(to, codes, bytes);
    if (from.flipped) flip(to, bytes, from.flipped);
    std::memset(to + bytes, 0, code_bytes - bytes);  // the last group may be longer than the row
    left -= bytes;
    codes += code_bytes;
    to += code_bytes;
  }
}

void write_values(const GroupTensors& from, int row, const uint8_t* codes, uint8_t* to) {
  // Codes of four bits are apart here, whose bytes had two of them.
  const uint8_t flipped = place_bits(from) == 4 ? from.flipped & 15 : from.flipped;
  const Window made = window_of(from);
  for (int group = from.first_group; group < from.end_group; group++) {
    const float scale = scale_at(from, row, group), stored = zero_at(from, row, group);
    const float zero = from.zeros_are_values ? from.middle : stored;
    const float added = from.zeros_are_values ? stored : 0.0f;
    const int first = group * from.group - made.first;
    const int end = std::min(first + from.group, made.end - made.first);
    for (int i = first; i < end; i++) {
      const uint8_t code = codes[i] ^ flipped;
      float value = (from.table ? from.table[code] : static_cast<float>(code) - zero) * scale;
      if (from.zeros_are_values) value += added;
      std::memcpy(to + sizeof value * (from.places ? from.places[i] : i), &value, sizeof value);
    }
  }
}

// Makes `count` rows from `first` on.
void make_rows(const GroupTensors& from, int first, int count, uint8_t* const* to, RowRoom& room) {
  const Window inputs = from.columns ? Window{0, from.inputs} : window_of(from);
  const bool has_parts = from.order == CodeOrder::Parts;
  const WordRows words = has_parts ? WordRows{} : read_words(from, inputs, first, count, room);
  const bool is_in_place = !has_parts && from.columns == nullptr && from.bits == place_bits(from);
  const Window made = window_of(from);
  for (int i = 0; i < count; i++) {
    const uint8_t* row = has_parts ? nullptr : words.data + words.stride * i;
    const auto in_row = [&] {
      return has_parts ? in_bytes_of_parts(from, first + i, room)
                       : in_bytes(from, row, words.skipped, inputs, room);
    };
    if (from.has_values) {
      write_values(from, first + i, in_row(), to[i]);
    } else if (is_in_place) {
      write_groups(from, first + i, row + words.skipped / 8, to[i]);
    } else {
      const uint8_t* bytes = in_row();
      uint8_t* codes = room.codes.data() + (bytes - room.codes.data());
      if (place_bits(from) == 4) join_pairs(codes, made.end - made.first);
      write_groups(from, first + i, codes, to[i]);
    }
  }
}

}  // namespace

size_t made_row_bytes(const GroupTensors& from) {
  const Window made = window_of(from);
  if (from.has_values) return sizeof(float) * (made.end - made.first);
  const size_t group_bytes = sizeof(float) * (1 + from.has_zeros) + group_code_bytes(from);
  return group_bytes * (from.end_group - from.first_group);
}

void pack_made_rows(Format format, Stored type, const std::vector<GroupTensors>& tensors,
                    const std::vector<RowPlace>& places, int inputs, int first_panel, int end_panel,
                    uint8_t* data, RowRoom& room) {
  const int first = first_panel * kPanel;
  const int count = std::min(end_panel * kPanel, static_cast<int>(places.size())) - first;
  const RowPlace* mine = places.data() + first;
  const size_t row_bytes = made_row_bytes(tensors.front());
  room.rows.resize(row_bytes * count);
  // Rows are made in the order of the file, in runs: that of the panels may interleave two.
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  const auto is_before = [mine](int a, int b) {
    return mine[a].tensors != mine[b].tensors ? mine[a].tensors < mine[b].tensors
                                              : mine[a].row < mine[b].row;
  };
  std::stable_sort(order.begin(), order.end(), is_before);
  std::vector<uint8_t*> to(count);
  std::vector<const uint8_t*> rows(count);
  for (int i = 0; i < count; i++) {
    to[i] = room.rows.data() + row_bytes * order[i];
    rows[order[i]] = mine[order[i]].tensors < 0 ? nullptr : to[i];
  }
  for (int begin = 0, end; begin < count; begin = end) {
    const RowPlace& at = mine[order[begin]];
    end = begin + 1;
    if (at.tensors < 0) continue;
    while (end < count && mine[order[end]].tensors == at.tensors &&
           mine[order[end]].row == at.row + (end - begin)) end++;
    make_rows(tensors[at.tensors], at.row, end - begin, to.data() + begin, room);
  }
  pack_panels(format, type, rows.data(), count, inputs, 0, end_panel - first_panel,
              data + panel_bytes(format, inputs) * first_panel);
}

}  // namespace octavo
