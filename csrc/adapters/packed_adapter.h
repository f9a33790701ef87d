// Packs an adapter's matrices as the kernels read them: of each product the first matrices of all
// parts, one above the other, and the rows of the second ones in the order of the packed outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/table.h"
#include "runtime/arena.h"
#include "runtime/ranks.h"

namespace octavo {

// A product that adapters may change: its parts, and the packed matrices that its outputs are in.
struct AdaptedProduct {
  int32_t inputs = 0;
  std::vector<int32_t> part_ends;  // the first output behind each part
  // Of each packed matrix: which output is in each of its rows; -1: a row of zeros.
  std::vector<std::vector<int32_t>> outputs;
  // It is a lookup in a table that has a row for each input, and a column for each output. It has
  // one part, whose first matrix is [rows of the table, rank] in F32.
  bool is_lookup = false;
};

// A matrix, or a table, in place of the base's; without data there is none.
struct AdapterWhole {
  Matrix matrix{};
  const float* bias = nullptr;  // [outputs]
};

// The low numbers of each row of a table, of which an adapter's `Down` makes addends to what is
// looked up; without data there are none.
struct Lows {
  const float* data = nullptr;
  int32_t rows = 0;
};

// A first matrix of an adapter, [rank, inputs], row after row.
struct AdapterDown {
  const uint8_t* numbers;
  int32_t rank;
  float scale;
};

// What an adapter has for a part: a second matrix, [rows of the part, rank], row after row, behind
// one of the first ones, and numbers for each of its outputs (see UpHalf). Each may be nullptr.
struct AdapterUp {
  const uint8_t* numbers;
  int32_t down;
  const float* magnitudes = nullptr;
  const float* bias = nullptr;
};

// What an adapter has for one product, all of one type.
struct AdapterParts {
  Format format = Format::F32;  // F32, F16 or BF16
  std::vector<AdapterDown> downs;
  std::vector<AdapterUp> ups;  // of each part; none at all: no pair or bias changes the product
  AdapterWhole whole;  // which nothing else changes
};

class PackedAdapter {
 public:
  // The numbers are copied, by so many threads, of which the caller's is one; into memory of the
  // ranks, if there are any.
  PackedAdapter(const std::vector<AdaptedProduct>& products,
                const std::vector<AdapterParts>& parts, int threads, Ranks* ranks = nullptr);
  // One that the first rank has packed, which keeps its memory: `place` is that one's.
  PackedAdapter(const Ranks& ranks, uint64_t place);
  PackedAdapter(const PackedAdapter&) = delete;

  const std::vector<Down>& downs() const { return downs_; }  // of each product
  const Up* ups() const { return ups_.data(); }  // of each packed matrix of all products, in order
  const AdapterWhole& whole(int32_t product) const { return wholes_[product]; }
  const Lows& lows(int32_t product) const { return lows_[product]; }
  size_t bytes() const;
  // Where it lies in the memory of the ranks, for those that did not pack it.
  uint64_t place() const { return place_; }

 private:
  // Memory that is taken piece by piece, or only counted where there is none.
  struct Room {
    uint8_t* data = nullptr;
    size_t taken = 0;

    uint8_t* take(size_t bytes);
  };

  // The first of its packed matrices, and the room of what is packed of it.
  struct Begin {
    size_t matrix = 0;
    size_t taken = 0;
  };

  // Goes through all that says where numbers are (shared.cpp).
  template <typename Each>
  void for_each_list(Each& each);
  // Makes the memory, with room for these lists where ranks read them.
  void make_memory(size_t bytes, Ranks* ranks);
  void write_lists(const Ranks& ranks);

  void pack_product(const AdaptedProduct& product, const AdapterParts& parts, size_t number,
                    Room& room);
  void pack_down(const AdaptedProduct& product, const AdapterParts& parts, Down& down, Room& room);
  void pack_up(const AdaptedProduct& product, const AdapterParts& parts,
               const std::vector<int32_t>& outputs, std::vector<UpHalf>& halves, Room& room);
  // A number for each output of a half, or nullptr if no part with any of them has these.
  const float* pack_outputs(const AdaptedProduct& product, const AdapterParts& parts,
                            const int32_t* outputs, int count, const float* AdapterUp::*numbers,
                            float otherwise, Room& room);
  void pack_lows(const AdaptedProduct& product, const AdapterParts& parts, size_t number,
                 Room& room);
  void pack_whole(const AdapterWhole& from, AdapterWhole& to, Room& room);

  std::vector<Down> downs_;
  std::vector<Up> ups_;
  std::vector<std::vector<UpHalf>> halves_;
  std::vector<Begin> begins_;  // of each product
  std::vector<AdapterWhole> wholes_;  // of each product, as are these
  std::vector<Lows> lows_;
  Pages memory_;
  size_t lists_ = 0;    // where the lists are in it, which other ranks read
  uint64_t place_ = 0;  // of these, in the memory of the ranks
};

}  // namespace octavo
