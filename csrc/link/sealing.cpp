// Sealing of what crosses between machines, by ChaCha20-Poly1305 (RFC 8439).
#include "link/sealing.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace octavo {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int kLanes = 4;
constexpr size_t kBlockBytes = 64;
// A vector of the same word of four blocks, whose counters follow each other.
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Key = std::array<uint32_t, 8>;

Words rotated(Words x, int by) { return (x << by) | (x >> (32 - by)); }

void mix(Words& a, Words& b, Words& c, Words& d) {
  a += b, d = rotated(d ^ a, 16);
  c += d, b = rotated(b ^ c, 12);
  a += b, d = rotated(d ^ a, 8);
  c += d, b = rotated(b ^ c, 7);
}

// Writes four blocks of ChaCha20's stream, from the block `counter` on. The nonce is the number of
// the part, behind four bytes of zero.
void stream(const Key& key, uint32_t counter, uint64_t number, uint8_t* out) {
  uint32_t first[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};  // "expand 32-byte k"
  std::copy(key.begin(), key.end(), first + 4);
  first[12] = counter;
  first[14] = static_cast<uint32_t>(number);
  first[15] = static_cast<uint32_t>(number >> 32);
  Words begin[16], x[16];
  for (int word = 0; word < 16; ++word) begin[word] = Words{} + first[word];
  begin[12] += Words{0, 1, 2, 3};
  std::copy(begin, begin + 16, x);
  for (int round = 0; round < 10; ++round) {
    for (int column = 0; column < 4; ++column)
      mix(x[column], x[4 + column], x[8 + column], x[12 + column]);
    for (int column = 0; column < 4; ++column)
      mix(x[column], x[4 + (column + 1) % 4], x[8 + (column + 2) % 4], x[12 + (column + 3) % 4]);
  }
  uint32_t lanes[16][kLanes];
  for (int word = 0; word < 16; ++word) {
    x[word] += begin[word];
    std::memcpy(lanes[word], &x[word], sizeof x[word]);
  }
  for (int lane = 0; lane < kLanes; ++lane)
    for (int word = 0; word < 16; ++word)
      std::memcpy(out + lane * kBlockBytes + 4 * word, &lanes[word][lane], 4);
}

// Adds the stream of a part to the bytes, from its second block on; the first one has the key of
// the tag.
void encrypt(const Key& key, uint64_t number, uint8_t* data, size_t bytes) {
  uint8_t some[kLanes * kBlockBytes];
  uint32_t counter = 1;
  for (size_t at = 0; at < bytes; at += sizeof some, counter += kLanes) {
    stream(key, counter, number, some);
    const size_t count = std::min(sizeof some, bytes - at);
    for (size_t i = 0; i < count; ++i) data[at + i] ^= some[i];
  }
}

using Wide = unsigned __int128;

uint64_t word_at(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// Poly1305 in limbs of 44, 44 and 42 bits: the sum of 16 bytes each, times powers of a number that
// is secret, modulo 2^130 - 5.
class Authenticator {
 public:
  explicit Authenticator(const uint8_t* key) {
    const uint64_t low = word_at(key), high = word_at(key + 8);
    r_[0] = low & 0xffc0fffffff;
    r_[1] = (low >> 44 | high << 20) & 0xfffffc0ffff;
    r_[2] = (high >> 24) & 0x00ffffffc0f;
    pad_[0] = word_at(key + 16);
    pad_[1] = word_at(key + 24);
  }

  // Whole blocks; the last one is filled with zeros.
  void add(const uint8_t* data, size_t bytes) {
    for (; bytes >= 16; data += 16, bytes -= 16) add_block(data);
    if (bytes == 0) return;
    uint8_t last[16] = {};
    std::memcpy(last, data, bytes);
    add_block(last);
  }

  void finish(uint8_t* tag) {
    uint64_t carry = h_[1] >> 44;
    h_[1] &= kLimb;
    for (int turn = 0; turn < 2; ++turn) {  // all carries, around through 2^130
      h_[2] += carry, carry = h_[2] >> 42, h_[2] &= kLast;
      h_[0] += carry * 5, carry = h_[0] >> 44, h_[0] &= kLimb;
      h_[1] += carry, carry = h_[1] >> 44, h_[1] &= kLimb;
    }
    h_[2] += carry;
    uint64_t g[3];  // h - p
    g[0] = h_[0] + 5, carry = g[0] >> 44, g[0] &= kLimb;
    g[1] = h_[1] + carry, carry = g[1] >> 44, g[1] &= kLimb;
    g[2] = h_[2] + carry - (uint64_t{1} << 42);
    const uint64_t is_less = ~((g[2] >> 63) - 1);  // all ones if h < p
    for (int limb = 0; limb < 3; ++limb) h_[limb] = (h_[limb] & is_less) | (g[limb] & ~is_less);
    const Wide low = Wide{h_[0] | h_[1] << 44} + pad_[0];
    const uint64_t high = (h_[1] >> 20 | h_[2] << 24) + pad_[1] + static_cast<uint64_t>(low >> 64);
    const uint64_t words[2] = {static_cast<uint64_t>(low), high};
    std::memcpy(tag, words, sizeof words);
  }

 private:
  static constexpr uint64_t kLimb = (uint64_t{1} << 44) - 1, kLast = (uint64_t{1} << 42) - 1;

  void add_block(const uint8_t* data) {
    const uint64_t low = word_at(data), high = word_at(data + 8);
    h_[0] += low & kLimb;
    h_[1] += (low >> 44 | high << 20) & kLimb;
    h_[2] += (high >> 24 & kLast) | uint64_t{1} << 40;  // the bit behind the 16 bytes
    // 2^132 is 20, modulo 2^130 - 5.
    const uint64_t s1 = r_[1] * 20, s2 = r_[2] * 20;
    Wide d0 = Wide{h_[0]} * r_[0] + Wide{h_[1]} * s2 + Wide{h_[2]} * s1;
    Wide d1 = Wide{h_[0]} * r_[1] + Wide{h_[1]} * r_[0] + Wide{h_[2]} * s2;
    Wide d2 = Wide{h_[0]} * r_[2] + Wide{h_[1]} * r_[1] + Wide{h_[2]} * r_[0];
    d1 += static_cast<uint64_t>(d0 >> 44);
    d2 += static_cast<uint64_t>(d1 >> 44);
    h_[0] = (static_cast<uint64_t>(d0) & kLimb) + static_cast<uint64_t>(d2 >> 42) * 5;
    h_[1] = (static_cast<uint64_t>(d1) & kLimb) + (h_[0] >> 44);
    h_[0] &= kLimb;
    h_[2] = static_cast<uint64_t>(d2) & kLast;
  }

  uint64_t r_[3], pad_[2], h_[3] = {};
};

void write_tag(const Key& key, uint64_t number, const uint8_t* sealed, size_t bytes, uint8_t* tag) {
  uint8_t some[kLanes * kBlockBytes];
  stream(key, 0, number, some);
  Authenticator authenticator(some);
  authenticator.add(sealed, bytes);
  const uint64_t sizes[2] = {0, bytes};  // nothing is beside the part
  authenticator.add(reinterpret_cast<const uint8_t*>(sizes), sizeof sizes);
  authenticator.finish(tag);
}

}  // namespace

Sealing::Sealing(std::string_view key) {
  if (key.size() != kKeyBytes) throw std::invalid_argument("a key must have 32 bytes");
  std::memcpy(key_.data(), key.data(), kKeyBytes);
}

void Sealing::seal(uint8_t* data, size_t bytes, uint8_t* tag) {
  encrypt(key_, number_, data, bytes);
  write_tag(key_, number_++, data, bytes, tag);
}

bool Sealing::open(uint8_t* data, size_t bytes, const uint8_t* tag) {
  uint8_t expected[kTagBytes];
  write_tag(key_, number_, data, bytes, expected);
  uint8_t difference = 0;  // of all bytes, so that the time says nothing
  for (size_t i = 0; i < kTagBytes; ++i) difference |= expected[i] ^ tag[i];
  if (difference != 0) return false;
  encrypt(key_, number_++, data, bytes);
  return true;
}

}  // namespace octavo
