// A checksum of packed panels, as fast as memory is read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Any change inside one word of eight bytes changes the result; other damage does with near
// certainty. It is no defence against someone who chooses the bytes.
uint64_t checksum(const uint8_t* data, size_t bytes);

}  // namespace octavo
