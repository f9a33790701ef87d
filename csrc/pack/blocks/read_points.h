// Stored blocks whose codes choose points of a codebook, as the codes of the points' elements.
#pragma once

#include "pack/blocks/panel_groups.h"

namespace octavo {

// Each reads group `index` of a row: its codes (Table3Iq1, Table3Iq2, Table4Xxs or Table4S), the
// scale of its block and the factors of its own scales.
void read_iq1_s(const uint8_t* row, int index, Group& group);
void read_iq1_m(const uint8_t* row, int index, Group& group);
void read_iq2_xxs(const uint8_t* row, int index, Group& group);
void read_iq2_xs(const uint8_t* row, int index, Group& group);
void read_iq2_s(const uint8_t* row, int index, Group& group);
void read_iq3_xxs(const uint8_t* row, int index, Group& group);
void read_iq3_s(const uint8_t* row, int index, Group& group);

}  // namespace octavo
