// Memory taken from the system in large pieces: aligned, zeroed, in huge pages where they help.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace octavo {

inline constexpr size_t kSmallPage = 4096, kHugePage = size_t{2} << 20;

inline size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// One run of zeroed pages: its own, or a part of a mapping that it keeps. They take no memory until
// they are touched.
class Pages {
 public:
  Pages() = default;
  // Throws std::bad_alloc. `huge` asks for pages of 2 MiB, which make streaming faster; the
  // first touch takes a whole one.
  Pages(size_t bytes, bool huge);
  // A part of memory that lives as long as `owner`.
  Pages(uint8_t* data, size_t bytes, std::shared_ptr<const void> owner)
      : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  Pages(const Pages&) = delete;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<const void> owner_;  // nullptr: the pages are its own
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
