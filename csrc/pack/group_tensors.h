// Rows that are made of a checkpoint's tensors while they are packed, a few at a time.
//
// One tensor has the codes of a matrix, others the scales and zero points of its groups of inputs.
// A row is a run of groups: [scale, fp32][zero point, fp32, if there are any][codes in places of 4
// or 8 bits, the first in the lowest bits], which the types I2… to I8… of pack.h are; or it has the
// values themselves, in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pack/pack.h"

namespace octavo {

// A view of a tensor with two axes, whose strides are in bytes.
struct Plane {
  const uint8_t* data = nullptr;
  int64_t strides[2] = {};

  const uint8_t* at(int64_t i, int64_t j) const { return data + i * strides[0] + j * strides[1]; }
};

enum class CodeOrder : uint8_t {
  Inputs,        // [output, word]: a word has codes of consecutive inputs, the first lowest
  EightOutputs,  // [eight outputs, input]: four bits of each, from the lowest: 0 2 4 6 1 3 5 7
  // [group, input of a group], of all outputs' groups one after the other in as many equal parts as
  // a word has codes: one of each part, the first part's in the highest bits.
  Parts,
};

struct GroupTensors {
  Plane codes;
  CodeOrder order;
  int word_bytes;
  int bits;         // of a code
  uint8_t flipped;  // bits of bytes of codes that are stored inverted
  int parts;        // of CodeOrder::Parts …
  int64_t part;     // … and the groups of each
  Plane scales;     // [output / scale_outputs, input / scale_group]
  Stored scale_type;
  int scale_outputs;
  int scale_group;
  Plane zeros;              // [output, input / scale_group]: bytes, or floats of zero_type
  bool zeros_are_bytes;
  Stored zero_type;
  const int64_t* columns;   // the file's input for each of the row's; nullptr: the same
  int inputs;               // of the file's rows
  int group;                // inputs of a group of the rows that are made
  int first_group;          // of the rows that are made, which end before `end_group`
  int end_group;
  uint8_t middle;           // the zero point of all codes, where there is no tensor of zero points
  bool has_zeros;           // rows have zero points
  bool zeros_are_values;    // of the codes `middle`
  bool has_values;          // rows have no groups, but values
  const float* table;       // the values of the codes; nullptr: codes less the zero point
  const int64_t* places;    // where each value belongs; nullptr: in the order of the inputs
};

// A row of one of the tensors of a job; tensors < 0: zeros.
struct RowPlace {
  int32_t tensors;
  int32_t row;
};

// Memory of a thread, kept between calls.
struct RowRoom {
  std::vector<uint8_t> rows, words, codes;
  std::vector<uint32_t> turned;
};

size_t made_row_bytes(const GroupTensors& from);

// Does what pack_panels does, with rows that it makes.
void pack_made_rows(Format format, Stored type, const std::vector<GroupTensors>& tensors,
                    const std::vector<RowPlace>& places, int inputs, int first_panel, int end_panel,
                    uint8_t* data, RowRoom& room);

}  // namespace octavo
