// Packing of integers of safetensors in groups of 32, 64 or 128 inputs.
//
// A stored group is [scale, fp32][zero point?, fp32][codes, unsigned, the first in the lowest
// bits], which have four or eight bits. Those of four are moved sixteen at a time: the speed of
// loading a model depends on this.
#include "pack/pack_integers.h"

#include <algorithm>
#include <cstring>

#include "kernels/group_layout.h"
#include "kernels/numbers.h"

namespace octavo {
namespace {

// Exchanges the bits of a number that the mask has with those `shift` above them.
uint64_t exchange(uint64_t number, int shift, uint64_t mask) {
  const uint64_t changed = (number ^ number >> shift) & mask;
  return number ^ changed ^ changed << shift;
}

// Sixteen codes in order become two words of a panel: of eight codes the first four are in the low
// halves of its bytes, the others in the high ones.
uint64_t of_panel(uint64_t codes) {
  codes = exchange(codes, 8, 0x0000ff000000ff00);
  return exchange(codes, 4, 0x00f000f000f000f0);
}

void put(uint8_t* to, int row, uint32_t word) {
  std::memcpy(to + row * kCodeRow, &word, sizeof word);
}

// Both pointers belong to one output: `to` is the place of its words in the first row of codes.
template <int kBits>
void pack_codes(const uint8_t* from, uint8_t* to) {
  constexpr int kRows = kBits == 8 ? kSteps : kSteps / 2;
  for (int row = 0; row < kRows; row += 2) {
    uint64_t codes;
    std::memcpy(&codes, from + 4 * row, sizeof codes);
    if (kBits == 4) codes = of_panel(codes);
    put(to, row, static_cast<uint32_t>(codes));
    put(to, row + 1, static_cast<uint32_t>(codes >> 32));
  }
}

// The same of codes of two or three bits, which are stored in four.
template <bool kThird>
void pack_few_bits(const uint8_t* from, uint8_t* to) {
  constexpr uint32_t kTwo = 0x03030303, kOne = 0x01010101;
  uint32_t third = 0;
  for (int row = 0; row < 2; row++) {
    uint64_t codes;
    std::memcpy(&codes, from + row * sizeof codes, sizeof codes);
    codes = of_panel(codes);
    uint32_t lower = 0;
    for (int step = 0; step < 4; step++) {
      const auto code = static_cast<uint32_t>(codes >> (step / 2 * 32 + step % 2 * 4));
      lower |= (code & kTwo) << (2 * step);
      third |= (code >> 2 & kOne) << (4 * row + step);
    }
    put(to, row, lower);
  }
  if (kThird) put(to, 2, third);
}

template <> void pack_codes<2>(const uint8_t* from, uint8_t* to) { pack_few_bits<false>(from, to); }
template <> void pack_codes<3>(const uint8_t* from, uint8_t* to) { pack_few_bits<true>(from, to); }

void write_half(uint8_t* to, uint16_t half) { std::memcpy(to, &half, sizeof half); }

// kGroups groups of 32 inputs share a scale.
template <int kGroups, bool kZero, int kBits>
void pack_panel(const uint8_t* const* rows, int count, int groups, uint8_t* panel) {
  constexpr int kCodesAt = sizeof(float) * (kZero ? 2 : 1);
  constexpr int kGroupBytes = kBits == 8 ? kGroup : kGroup / 2;
  constexpr int kBlock = kCodesAt + kGroups * kGroupBytes;
  constexpr int kHeader = kHeaderLine * (kZero ? 2 : 1);
  constexpr int kPanelGroup = kPanel * kGroup * kBits / 8;
  constexpr int kPanelBlock = kHeader + kGroups * kPanelGroup;
  const int blocks = groups / kGroups;
  const bool is_full = count == kPanel && std::find(rows, rows + count, nullptr) == rows + count;
  if (!is_full) std::memset(panel, 0, static_cast<size_t>(blocks) * kPanelBlock);
  for (int block = 0; block < blocks; block++, panel += kPanelBlock) {
    for (int output = 0; output < count; output++) {
      if (rows[output] == nullptr) continue;
      const uint8_t* from = rows[output] + static_cast<size_t>(block) * kBlock;
      __builtin_prefetch(from + kBlock);  // the processor does not predict accesses to so many rows
      for (int at = 0; at < (kZero ? 2 : 1); at++) {
        float number;
        std::memcpy(&number, from + at * sizeof number, sizeof number);
        write_half(panel + at * kHeaderLine + output * 2, float_to_half(number));
      }
      for (int group = 0; group < kGroups; group++) {
        pack_codes<kBits>(from + kCodesAt + group * kGroupBytes,
                          panel + kHeader + group * kPanelGroup + output * 4);
      }
    }
  }
}

}  // namespace

PackPanel choose_integers(Stored type) {
  switch (type) {
    case Stored::I4By32: return pack_panel<1, false, 4>;
    case Stored::I4By64: return pack_panel<2, false, 4>;
    case Stored::I4By128: return pack_panel<4, false, 4>;
    case Stored::I4ZeroBy32: return pack_panel<1, true, 4>;
    case Stored::I4ZeroBy64: return pack_panel<2, true, 4>;
    case Stored::I4ZeroBy128: return pack_panel<4, true, 4>;
    case Stored::I4MidBy32: return pack_panel<1, true, 4>;
    case Stored::I4MidBy64: return pack_panel<2, true, 4>;
    case Stored::I4MidBy128: return pack_panel<4, true, 4>;
    case Stored::I3ZeroBy32: return pack_panel<1, true, 3>;
    case Stored::I3ZeroBy64: return pack_panel<2, true, 3>;
    case Stored::I3ZeroBy128: return pack_panel<4, true, 3>;
    case Stored::I2ZeroBy32: return pack_panel<1, true, 2>;
    case Stored::I2ZeroBy64: return pack_panel<2, true, 2>;
    case Stored::I2ZeroBy128: return pack_panel<4, true, 2>;
    case Stored::I8By32: return pack_panel<1, false, 8>;
    case Stored::I8By64: return pack_panel<2, false, 8>;
    case Stored::I8By128: return pack_panel<4, false, 8>;
    case Stored::I8ZeroBy32: return pack_panel<1, true, 8>;
    case Stored::I8ZeroBy64: return pack_panel<2, true, 8>;
    case Stored::I8ZeroBy128: return pack_panel<4, true, 8>;
    default: return nullptr;
  }
}

}  // namespace octavo
