// Packing of the stored types whose block is a group of 32 inputs: most of what GGUF files hold.
//
// The speed of loading a model depends on this code, so it never handles single bytes: a block's
// codes are words of four, which are moved into the words of kernels/group_layout.h. The layouts
// are those of U4, U4Min, U5, U5Min, U8 and Table4. (pack_integers.cpp handles integers.)
#include "pack/pack_groups.h"

#include <algorithm>
#include <cstring>

#include "kernels/group_layout.h"
#include "pack/pack_integers.h"

namespace octavo {
namespace {

constexpr uint32_t kLow = 0x0f0f0f0f, kHigh = 0xf0f0f0f0;
// Groups taken from each row in turn: the part of the panel that they fill must stay in the L1, and
// rows should be read in long runs.
constexpr int kGroupsAtOnce = 24;

uint32_t read_word(const uint8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

void write_word(uint8_t* to, uint32_t word) { std::memcpy(to, &word, sizeof word); }

void copy_half(uint8_t* to, const uint8_t* from) { std::memcpy(to, from, 2); }

// Bits 0 … 3 to the lowest bits of four bytes.
uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// [scale][minimum?][fifth bits?][16 bytes: steps 0 … 3 in the low halves, 4 … 7 in the high ones].
template <bool kMinima, bool kFifth>
struct Nibbles {
  static constexpr int kBitsAt = kMinima ? 4 : 2;
  static constexpr int kCodesAt = kBitsAt + (kFifth ? 4 : 0);
  static constexpr int kBlock = kCodesAt + 16;
  static constexpr int kHeader = kHeaderLine * (kMinima ? 2 : 1);
  static constexpr int kGroupBytes = kHeader + kCodeRow * (kFifth ? 5 : 4);

  // Both pointers belong to one output: `to` is the place of its words in the first row of codes.
  static void pack(const uint8_t* from, uint8_t* header, uint8_t* to) {
    copy_half(header, from);
    if constexpr (kMinima) copy_half(header + kHeaderLine, from + 2);
    for (int pair = 0; pair < 2; pair++) {
      const uint32_t first = read_word(from + kCodesAt + 8 * pair);
      const uint32_t second = read_word(from + kCodesAt + 8 * pair + 4);
      write_word(to + pair * kCodeRow, (first & kLow) | (second & kLow) << 4);
      write_word(to + (2 + pair) * kCodeRow, (first >> 4 & kLow) | (second & kHigh));
    }
    if constexpr (kFifth) {
      const uint32_t bits = read_word(from + kBitsAt);
      uint32_t fifth = 0;
      for (int step = 0; step < kSteps; step++) fifth |= spread(bits >> 4 * step) << step;
      write_word(to + 4 * kCodeRow, fifth);
    }
  }
};

// [scale][32 signed bytes], to which 128 is added.
struct WholeBytes {
  static constexpr int kBlock = 34;
  static constexpr int kHeader = kHeaderLine;
  static constexpr int kGroupBytes = kHeader + kCodeRow * kSteps;

  static void pack(const uint8_t* from, uint8_t* header, uint8_t* to) {
    copy_half(header, from);
    for (int step = 0; step < kSteps; step++) {
      write_word(to + step * kCodeRow, read_word(from + 2 + 4 * step) ^ 0x80808080u);
    }
  }
};

template <class Type>
void pack_panel(const uint8_t* const* rows, int count, int groups, uint8_t* panel) {
  const bool is_full = count == kPanel && std::find(rows, rows + count, nullptr) == rows + count;
  if (!is_full) std::memset(panel, 0, static_cast<size_t>(groups) * Type::kGroupBytes);
  for (int first = 0; first < groups; first += kGroupsAtOnce) {
    const int end = std::min(groups, first + kGroupsAtOnce);
    for (int output = 0; output < count; output++) {
      if (rows[output] == nullptr) continue;
      const uint8_t* from = rows[output] + static_cast<size_t>(first) * Type::kBlock;
      uint8_t* to = panel + static_cast<size_t>(first) * Type::kGroupBytes;
      for (int group = first; group < end; group++) {
        Type::pack(from, to + output * 2, to + Type::kHeader + output * 4);
        from += Type::kBlock;
        to += Type::kGroupBytes;
      }
    }
  }
}

PackPanel choose(Stored type) {
  switch (type) {
    case Stored::Q4_0:
    case Stored::IQ4_NL: return pack_panel<Nibbles<false, false>>;
    case Stored::Q4_1: return pack_panel<Nibbles<true, false>>;
    case Stored::Q5_0: return pack_panel<Nibbles<false, true>>;
    case Stored::Q5_1: return pack_panel<Nibbles<true, true>>;
    case Stored::Q8_0: return pack_panel<WholeBytes>;
    default: return choose_integers(type);
  }
}

}  // namespace

bool packs_groups(Stored type) { return choose(type) != nullptr; }

void pack_groups(Stored type, const uint8_t* const* rows, int count, int inputs, uint8_t* panel) {
  choose(type)(rows, count, inputs / kGroup, panel);
}

}  // namespace octavo
