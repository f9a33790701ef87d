// Sealing of what crosses between machines, by ChaCha20-Poly1305 (RFC 8439): only who has the key
// can read it, change it, leave a part out, or send it once more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octavo {

// One direction of a connection. Parts are numbered, and each number is used once, so both ends
// must seal and open the same parts in the same order.
class Sealing {
 public:
  static constexpr size_t kKeyBytes = 32;
  static constexpr size_t kTagBytes = 16;

  // A key that no other direction, and no other connection, has. Throws std::invalid_argument.
  explicit Sealing(std::string_view key);

  // Encrypts the bytes in their place, and writes their tag.
  void seal(uint8_t* data, size_t bytes, uint8_t* tag);
  // Decrypts them; false, and nothing is changed, if they are not the next part.
  [[nodiscard]] bool open(uint8_t* data, size_t bytes, const uint8_t* tag);

 private:
  std::array<uint32_t, 8> key_;
  uint64_t number_ = 0;  // of the next part
};

}  // namespace octavo
