// The codebooks of GGUF's IQ types: for each code the levels of four or eight elements.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace octavo {

// A point's elements: each the number of its level, of which a codebook has three or eight. Points
// of IQ3 have four elements.
using Point = std::array<uint8_t, 8>;
using Codebook = std::vector<Point>;

const Codebook& iq1_points();
const Codebook& iq2_xxs_points();
const Codebook& iq2_xs_points();
const Codebook& iq2_s_points();
const Codebook& iq3_xxs_points();
const Codebook& iq3_s_points();

}  // namespace octavo
