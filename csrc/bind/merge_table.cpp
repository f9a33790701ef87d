// Binds the vocabulary and the merges of a tokenizer.
#include "text/merge_table.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bind/parts.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

MergeTable::Strings list_of(const nb::bytes& bytes, size_t count) {
  return {static_cast<const uint8_t*>(bytes.data()), bytes.size(), count};
}

// The words' tokens, merged. Tokens side by side with one number are a word; one without a number
// stands alone.
std::vector<int32_t> merge_words(const MergeTable& table, const std::vector<int32_t>& ids,
                                 const std::vector<std::optional<int64_t>>& words,
                                 bool takes_whole_words) {
  if (ids.size() != words.size()) throw std::invalid_argument("each token needs a word, or None");
  for (const int32_t id : ids)
    if (id < 0 || static_cast<size_t>(id) >= table.size())
      throw std::invalid_argument("there is no token " + std::to_string(id));
  std::vector<int32_t> merged, word;
  std::string text;
  for (size_t begin = 0, end; begin < ids.size(); begin = end) {
    end = begin + 1;
    while (words[begin] && end < ids.size() && words[end] == words[begin]) ++end;
    word.assign(ids.begin() + begin, ids.begin() + end);
    int32_t whole = -1;
    if (takes_whole_words) {
      text.clear();
      for (const int32_t id : word) text += table.token(id);
      whole = table.id_of(text);
    }
    if (whole >= 0) word.assign(1, whole);
    else table.merge(word);
    merged.insert(merged.end(), word.begin(), word.end());
  }
  return merged;
}

}  // namespace

void bind_merge_table(nb::module_& m) {
  nb::class_<MergeTable>(m, "MergeTable")
      .def(
          "__init__",
          [](MergeTable* table, const nb::bytes& tokens, size_t num_tokens,
             const nb::bytes& merges, size_t num_merges) {
            const MergeTable::Strings tokens_list = list_of(tokens, num_tokens);
            const MergeTable::Strings merges_list = list_of(merges, num_merges);
            nb::gil_scoped_release release;
            new (table) MergeTable(tokens_list, merges_list);
          },
          "tokens"_a, "num_tokens"_a, "merges"_a, "num_merges"_a)
      .def("__len__", &MergeTable::size)
      .def("token",
           [](const MergeTable& table, int64_t id) -> std::optional<std::string_view> {
             const std::string_view text = table.token(id);
             return text.empty() ? std::nullopt : std::optional(text);
           })
      .def("id_of",
           [](const MergeTable& table, std::string_view text) -> std::optional<int32_t> {
             const int32_t id = table.id_of(text);
             return id < 0 ? std::nullopt : std::optional(id);
           })
      .def("merge_words", merge_words, "ids"_a, "words"_a, "takes_whole_words"_a);
}

}  // namespace octavo
