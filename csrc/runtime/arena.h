// Memory taken from the system in large pieces: aligned, zeroed, in huge pages where they help.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

// One run of zeroed pages. They take no memory until they are touched.
class Pages {
 public:
  Pages() = default;
  // Throws std::bad_alloc. `huge` asks for pages of 2 MiB, which make streaming faster; the
  // first touch takes a whole one.
  Pages(size_t bytes, bool huge);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  Pages(const Pages&) = delete;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// Whether a step's results of so many bytes are better in huge pages.
constexpr bool are_huge(size_t bytes) { return bytes > (size_t{8} << 20); }

// Memory that is kept until the arena ends, taken piece by piece: packed weights.
class Arena {
 public:
  // `huge` is not for small amounts: the first touch of a huge page waits for all of it.
  explicit Arena(bool huge) : huge_(huge) {}

  // Zeroed and aligned to kAlign.
  uint8_t* take(size_t bytes);
  size_t taken() const { return taken_; }

 private:
  const bool huge_;
  std::vector<Pages> chunks_;
  size_t used_ = 0;  // of the last chunk
  size_t taken_ = 0;
};

}  // namespace octavo
