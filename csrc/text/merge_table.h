// The vocabulary of a byte-level tokenizer and its merges, read from the lists of a GGUF file.
//
// `tokenizers` makes objects of all tokens and merges, with Python's lock held: a fifth of the time
// from a small model's start to its first token. This table needs neither.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

class MergeTable {
 public:
  // A stored list of strings: each behind its length in eight bytes, from first to last.
  struct Strings {
    const uint8_t* bytes;
    size_t size;
    size_t count;
  };

  // Copies the strings. Throws std::invalid_argument for a vocabulary of another form than a usual
  // one, which `tokenizers` may accept or refuse: an empty token, one that is there twice or is not
  // valid UTF-8, a merge that is not two tokens with one space between them or makes no token, and
  // hashes that collide.
  MergeTable(const Strings& tokens, const Strings& merges);

  size_t size() const { return tokens_.size(); }
  // The token's text; an empty one for an id without a token.
  std::string_view token(int64_t id) const;
  // The id of a text, -1 for one that is no token.
  int32_t id_of(std::string_view text) const;
  // Merges the tokens of one word, the best pair first and of equals the leftmost: the order of
  // `tokenizers`, so that the tokens are the same.
  void merge(std::vector<int32_t>& word) const;

 private:
  struct Merge {
    uint64_t pair;  // kNoPair: an empty place
    uint32_t rank;  // the place in the list of merges; the least comes first
    int32_t becomes;
  };

  // The place of a text or pair in its table, or the empty place for it. A file may be made so that
  // many have one hash: the table's size where none of the first places is theirs or empty.
  size_t place_of(std::string_view text) const;
  size_t place_of(uint64_t pair) const;
  const Merge* find(int32_t left, int32_t right) const;

  std::string text_;                      // of all tokens
  std::vector<std::string_view> tokens_;  // parts of text_
  // Open addressing in tables at least twice as large as their contents.
  std::vector<int32_t> ids_;  // by the hash of the text; -1: empty
  std::vector<Merge> merges_;
};

}  // namespace octavo
