// DRY: penalties for tokens that would continue a repetition of the last tokens, as the reference
// (octavo/backends/torch/sampling/dry.py) defines them.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/slot.h"

namespace octavo {

class EditedRow;

// The working memory of one thread.
struct DryScratch {
  std::vector<int32_t> repeated;  // at each place of the window, read backwards
  std::vector<uint8_t> longest;   // of each token of the vocabulary; 0 but while DRY is applied
  std::vector<int32_t> continuing;
};

// Lowers the logits of the tokens that would continue a repetition. Takes time in proportion to the
// window, whatever it contains.
void apply_dry(const Dry& dry, const std::vector<int32_t>& history, EditedRow& row,
               DryScratch& scratch);

}  // namespace octavo
