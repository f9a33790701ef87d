// Reads blocks whose codes choose points of a codebook.
//
// All of them have 256 elements. Scales of runs are odd numbers, 2n + 1, times that of the block.
#include "pack/blocks/read_points.h"

#include "pack/blocks/codebooks.h"

namespace octavo {
namespace {

constexpr int kAtOnce = 8;
constexpr int kEights = kGroup / kAtOnce;  // of a group

uint8_t odd(unsigned number) { return static_cast<uint8_t>(2 * number + 1); }

// Both scales of a group, in four bits each.
void read_two_scales(uint8_t both, Group& group) {
  group.factors[0] = odd(both & 15);
  group.factors[1] = odd(both >> 4);
}

// Seven signs of eight: the number of all that are set is even.
unsigned with_eighth(unsigned seven) { return seven | (__builtin_popcount(seven) & 1u) << 7; }

// Writes eight codes: levels, and above their bits one of `upper` each.
void write_eight(const uint8_t* levels, int bits, unsigned upper, int eight, Group& group) {
  uint8_t codes[kAtOnce];
  for (int i = 0; i < kAtOnce; i++) {
    codes[i] = static_cast<uint8_t>(levels[i] | (upper >> i & 1) << bits);
  }
  std::memcpy(group.steps + eight * 2, codes, sizeof codes);
}

void write_point(const Codebook& points, unsigned code, unsigned signs, int eight, Group& group) {
  write_eight(points[code].data(), 2, signs, eight, group);
}

// Two points of four elements.
void write_two_points(const Codebook& points, unsigned first, unsigned second, unsigned signs,
                      int eight, Group& group) {
  uint8_t levels[kAtOnce];
  std::memcpy(levels, points[first].data(), kAtOnce / 2);
  std::memcpy(levels + kAtOnce / 2, points[second].data(), kAtOnce / 2);
  write_eight(levels, 3, signs, eight, group);
}

}  // namespace

// [scale][32 bytes: eight bits of a code][8 words: three bits of four codes, three of the scale,
// and the side of the eighth].
void read_iq1_s(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 50;
  const int part = index % kParts;
  const unsigned word = read_u16(block + 34 + part * 2);
  group.scale = read_u16(block);
  group.factors[0] = group.factors[1] = odd(word >> 12 & 7);
  const unsigned below = word >> 15 ? 255 : 0;
  for (int i = 0; i < kEights; i++) {
    const unsigned code = block[2 + part * kEights + i] | (word >> (3 * i) & 7) << 8;
    write_point(iq1_points(), code, below, i, group);
  }
}

// [32 bytes: eight bits of a code][16: three more and the side of the eighth, of two codes][4
// words: three bits of four scales, and four bits of the block's].
void read_iq1_m(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 56;
  const int part = index % kParts;
  const uint8_t* words = block + 48;
  unsigned scale = 0;
  for (int i = 0; i < 4; i++) scale |= (read_u16(words + 2 * i) >> 12 & 15u) << (4 * i);
  group.scale = static_cast<uint16_t>(scale);
  for (int i = 0; i < 2; i++) {
    const int number = part * 2 + i;
    group.factors[i] = odd(read_u16(words + number / 4 * 2) >> (number % 4 * 3) & 7);
  }
  for (int i = 0; i < kEights; i++) {
    const int number = part * kEights + i;
    const unsigned four = block[32 + number / 2] >> (number % 2 * 4) & 15;
    write_point(iq1_points(), block[number] | (four & 7) << 8, four >> 3 ? 255 : 0, i, group);
  }
}

// [scale][8 × (4 codes, 28 bits of signs and 4 of the scale)].
void read_iq2_xxs(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 66;
  const uint8_t* run = block + 2 + index % kParts * 8;
  const uint32_t rest = read_word(run + 4);
  group.scale = read_u16(block);
  group.factors[0] = group.factors[1] = odd(rest >> 28);
  for (int i = 0; i < kEights; i++) {
    write_point(iq2_xxs_points(), run[i], with_eighth(rest >> (7 * i) & 127), i, group);
  }
}

// [scale][32 words: nine bits of a code, seven signs][8 bytes: two scales].
void read_iq2_xs(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 74;
  const int part = index % kParts;
  group.scale = read_u16(block);
  read_two_scales(block[66 + part], group);
  for (int i = 0; i < kEights; i++) {
    const unsigned word = read_u16(block + 2 + (part * kEights + i) * 2);
    write_point(iq2_xs_points(), word & 511, with_eighth(word >> 9), i, group);
  }
}

// [scale][32 bytes: eight bits of a code][32: signs][8: two more bits of four codes][8: scales].
void read_iq2_s(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 82;
  const int part = index % kParts;
  group.scale = read_u16(block);
  read_two_scales(block[74 + part], group);
  const unsigned high = block[66 + part];
  for (int i = 0; i < kEights; i++) {
    const uint8_t* low = block + 2 + part * kEights + i;
    write_point(iq2_s_points(), *low | (high >> (2 * i) & 3) << 8, low[kGroup], i, group);
  }
}

// [scale][64 codes][8 words: 28 bits of signs and 4 of the scale].
void read_iq3_xxs(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 98;
  const int part = index % kParts;
  const uint32_t rest = read_word(block + 66 + part * 4);
  group.scale = read_u16(block);
  group.factors[0] = odd(rest >> 28);
  for (int i = 0; i < kEights; i++) {
    const uint8_t* two = block + 2 + (part * kEights + i) * 2;
    const unsigned signs = with_eighth(rest >> (7 * i) & 127);
    write_two_points(iq3_xxs_points(), two[0], two[1], signs, i, group);
  }
}

// [scale][64 bytes: eight bits of a code][8: the ninth][32: signs][4: two scales].
void read_iq3_s(const uint8_t* row, int index, Group& group) {
  const uint8_t* block = row + index / kParts * 110;
  const int part = index % kParts;
  group.scale = read_u16(block);
  group.factors[0] = odd(block[106 + part / 2] >> (part % 2 * 4) & 15);
  const unsigned ninth = block[66 + part];
  for (int i = 0; i < kEights; i++) {
    const uint8_t* two = block + 2 + (part * kEights + i) * 2;
    const unsigned first = two[0] | (ninth >> (2 * i) & 1) << 8;
    const unsigned second = two[1] | (ninth >> (2 * i + 1) & 1) << 8;
    write_two_points(iq3_s_points(), first, second, block[74 + part * kEights + i], i, group);
  }
}

}  // namespace octavo
