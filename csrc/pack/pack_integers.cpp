// Packing of integers of safetensors in groups of 32, 64 or 128 inputs.
//
// A stored group is [scale, fp32][zero point?][codes, unsigned, the first in the lowest bits].
// Codes of four bits are moved sixteen at a time: the speed of loading a model depends on this.
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

// Both pointers belong to one output: `to` is the place of its words in the first row of codes.
template <bool kBytes>
void pack_codes(const uint8_t* from, uint8_t* to) {
  constexpr int kRows = kBytes ? kSteps : kSteps / 2;
  for (int row = 0; row < kRows; row += 2) {
    uint64_t codes;
    std::memcpy(&codes, from + 4 * row, sizeof codes);
    if (!kBytes) codes = of_panel(codes);
    const uint32_t words[] = {static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32)};
    std::memcpy(to + row * kCodeRow, &words[0], sizeof words[0]);
    std::memcpy(to + (row + 1) * kCodeRow, &words[1], sizeof words[1]);
  }
}

void write_half(uint8_t* to, uint16_t half) { std::memcpy(to, &half, sizeof half); }

// kGroups groups of 32 inputs share a scale.
template <int kGroups, bool kZero, bool kBytes>
void pack_panel(const uint8_t* const* rows, int count, int groups, uint8_t* panel) {
  constexpr int kCodesAt = sizeof(float) + kZero, kGroupBytes = kBytes ? kGroup : kGroup / 2;
  constexpr int kBlock = kCodesAt + kGroups * kGroupBytes;
  constexpr int kHeader = kHeaderLine * (kZero ? 2 : 1);
  constexpr int kPanelGroup = kCodeRow * (kBytes ? kSteps : kSteps / 2);
  constexpr int kPanelBlock = kHeader + kGroups * kPanelGroup;
  const int blocks = groups / kGroups;
  const bool is_full = count == kPanel && std::find(rows, rows + count, nullptr) == rows + count;
  if (!is_full) std::memset(panel, 0, static_cast<size_t>(blocks) * kPanelBlock);
  for (int block = 0; block < blocks; block++, panel += kPanelBlock) {
    for (int output = 0; output < count; output++) {
      if (rows[output] == nullptr) continue;
      const uint8_t* from = rows[output] + static_cast<size_t>(block) * kBlock;
      __builtin_prefetch(from + kBlock);  // the processor does not predict accesses to so many rows
      float scale;
      std::memcpy(&scale, from, sizeof scale);
      write_half(panel + output * 2, float_to_half(scale));
      if (kZero) write_half(panel + kHeaderLine + output * 2, float_to_half(from[sizeof scale]));
      for (int group = 0; group < kGroups; group++) {
        pack_codes<kBytes>(from + kCodesAt + group * kGroupBytes,
                           panel + kHeader + group * kPanelGroup + output * 4);
      }
    }
  }
}

}  // namespace

PackPanel choose_integers(Stored type) {
  switch (type) {
    case Stored::I4By32: return pack_panel<1, false, false>;
    case Stored::I4By64: return pack_panel<2, false, false>;
    case Stored::I4By128: return pack_panel<4, false, false>;
    case Stored::I4ZeroBy32: return pack_panel<1, true, false>;
    case Stored::I4ZeroBy64: return pack_panel<2, true, false>;
    case Stored::I4ZeroBy128: return pack_panel<4, true, false>;
    case Stored::I8By32: return pack_panel<1, false, true>;
    case Stored::I8By64: return pack_panel<2, false, true>;
    case Stored::I8By128: return pack_panel<4, false, true>;
    default: return nullptr;
  }
}

}  // namespace octavo
