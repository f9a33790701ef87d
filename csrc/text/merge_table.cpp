// The vocabulary of a byte-level tokenizer and its merges, read from the lists of a GGUF file.
#include "text/merge_table.h"

#include <bit>
#include <cstring>
#include <limits>
#include <queue>
#include <stdexcept>

namespace octavo {

namespace {

constexpr uint64_t kNoPair = std::numeric_limits<uint64_t>::max();
constexpr size_t kLengthBytes = 8;
constexpr size_t kMostStrings = size_t{1} << 26;
constexpr size_t kMostProbes = 512;  // tens are usual in tables of this size

// The next string of a list; moves `at` behind it.
std::string_view next_string(const MergeTable::Strings& list, size_t& at) {
  if (list.size - at < kLengthBytes) throw std::invalid_argument("a list of strings ends early");
  uint64_t length;
  std::memcpy(&length, list.bytes + at, kLengthBytes);
  if constexpr (std::endian::native == std::endian::big) length = __builtin_bswap64(length);
  at += kLengthBytes;
  if (length > list.size - at) throw std::invalid_argument("a string reaches past its list");
  const auto* text = reinterpret_cast<const char*>(list.bytes + at);
  at += length;
  return {text, static_cast<size_t>(length)};
}

// Whether the text is valid UTF-8, as Python decodes it: neither surrogates nor longer spellings.
bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t{0}; };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  for (size_t i = 0; i < text.size();) {
    const uint8_t first = byte(i), second = byte(i + 1);
    if (first < 0x80) {
      i += 1;
    } else if (first >= 0xC2 && first < 0xE0) {
      if (!continues(i + 1)) return false;
      i += 2;
    } else if (first >= 0xE0 && first < 0xF0) {
      if (!continues(i + 1) || !continues(i + 2)) return false;
      if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0)) return false;
      i += 3;
    } else if (first >= 0xF0 && first < 0xF5) {
      if (!continues(i + 1) || !continues(i + 2) || !continues(i + 3)) return false;
      if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90)) return false;
      i += 4;
    } else {
      return false;
    }
  }
  return true;
}

uint64_t mixed(uint64_t bits) {
  bits *= 0x9E3779B97F4A7C15u;
  return bits ^ bits >> 32;
}

size_t table_size(size_t count) { return std::bit_ceil(2 * count + 2); }

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// A merge that may be done, unless one of its sides has been merged otherwise meanwhile.
struct Candidate {
  uint32_t rank;
  int32_t at;
  int32_t becomes;
  // Whether it comes after the other one: the order of a queue.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

MergeTable::MergeTable(const Strings& tokens, const Strings& merges) {
  if (tokens.count > kMostStrings || merges.count > kMostStrings)
    throw std::invalid_argument("more tokens or merges than a vocabulary has");
  std::vector<size_t> ends;
  for (size_t i = 0, at = 0; i < tokens.count; ++i) {
    const std::string_view token = next_string(tokens, at);
    if (token.empty() || !is_utf8(token)) throw std::invalid_argument("a token is no text");
    text_ += token;
    ends.push_back(text_.size());
  }
  ids_.assign(table_size(tokens.count), -1);
  for (size_t begin = 0; const size_t end : ends) {
    const std::string_view token = std::string_view(text_).substr(begin, end - begin);
    const size_t place = place_of(token);
    if (place == ids_.size() || ids_[place] >= 0)
      throw std::invalid_argument("a token is there twice, or has the hash of many others");
    ids_[place] = static_cast<int32_t>(tokens_.size());
    tokens_.push_back(token);
    begin = end;
  }
  merges_.assign(table_size(merges.count), {kNoPair, 0, 0});
  std::string whole;
  for (size_t i = 0, at = 0; i < merges.count; ++i) {
    const std::string_view merge = next_string(merges, at);
    const size_t space = merge.find(' ');
    if (space == merge.npos || merge.find(' ', space + 1) != merge.npos)
      throw std::invalid_argument("a merge has not two parts");
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    whole.assign(left).append(right);
    const int32_t left_id = id_of(left), right_id = id_of(right), becomes = id_of(whole);
    if (left_id < 0 || right_id < 0 || becomes < 0)
      throw std::invalid_argument("a merge has parts, or a result, that are no tokens");
    const uint64_t pair = pair_of(left_id, right_id);
    const size_t place = place_of(pair);
    if (place == merges_.size()) throw std::invalid_argument("a merge has the hash of many others");
    merges_[place] = {pair, static_cast<uint32_t>(i), becomes};  // of equal pairs the last counts
  }
}

std::string_view MergeTable::token(int64_t id) const {
  return id < 0 || id >= static_cast<int64_t>(size()) ? std::string_view() : tokens_[id];
}

size_t MergeTable::place_of(std::string_view text) const {
  const size_t home = std::hash<std::string_view>()(text);
  for (size_t probe = 0; probe < kMostProbes; ++probe) {
    const size_t place = (home + probe) & (ids_.size() - 1);
    if (ids_[place] < 0 || tokens_[ids_[place]] == text) return place;
  }
  return ids_.size();
}

size_t MergeTable::place_of(uint64_t pair) const {
  const size_t home = mixed(pair);
  for (size_t probe = 0; probe < kMostProbes; ++probe) {
    const size_t place = (home + probe) & (merges_.size() - 1);
    if (merges_[place].pair == kNoPair || merges_[place].pair == pair) return place;
  }
  return merges_.size();
}

int32_t MergeTable::id_of(std::string_view text) const {
  const size_t place = place_of(text);
  return place == ids_.size() ? -1 : ids_[place];
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t place = place_of(pair);
  return place == merges_.size() || merges_[place].pair != pair ? nullptr : &merges_[place];
}

void MergeTable::merge(std::vector<int32_t>& word) const {
  const auto size = static_cast<int32_t>(word.size());
  // The neighbours of each token that is left; a token that another one has taken in is -1.
  std::vector<int32_t> before(size), after(size);
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t at) {
    const Merge* found = find(word[at], word[after[at]]);
    if (found) queue.push({found->rank, at, found->becomes});
  };
  for (int32_t i = 0; i < size; ++i) {
    before[i] = i - 1;
    after[i] = i + 1;
  }
  for (int32_t i = 0; i + 1 < size; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    if (word[best.at] < 0 || after[best.at] == size) continue;
    const int32_t next = after[best.at];
    const Merge* still = find(word[best.at], word[next]);
    if (!still || still->becomes != best.becomes) continue;
    word[best.at] = best.becomes;
    word[next] = -1;
    after[best.at] = after[next];
    if (after[best.at] < size) before[after[best.at]] = best.at;
    if (before[best.at] >= 0) consider(before[best.at]);
    if (after[best.at] < size) consider(best.at);
  }
  std::erase(word, -1);
}

}  // namespace octavo
