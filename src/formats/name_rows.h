// What names of tensors have beside, or instead of, the names of their model: one row each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

struct NameRow {
  enum class Kind {
    kWrapper,  // a part of names that wrappers of modules add
    kOldName,  // the end of a name that has another one today
    kBuffer,   // the end of a name of what is computed anew, and of no use in a file
    kTied,     // the end of a name of what only repeats another tensor
  } kind;
  std::string_view text;
  std::string_view now = {};  // of an old name
  // Of a buffer: an extent for each dimension, `1` or a letter; equal letters are equal extents.
  // Of a tied tensor: kIfConfigTies, if the config decides whether it is one.
  std::string_view form = {};
};

inline constexpr std::string_view kIfConfigTies = "config";

std::span<const NameRow> NameRows();

// Returns the row of that kind whose text the name ends with, after a dot or from its beginning, or
// null.
const NameRow* FindNameRow(NameRow::Kind kind, std::string_view name);

// Returns whether a tensor of this name and shape is a buffer.
bool IsBuffer(std::string_view name, const std::vector<int64_t>& shape);

// Returns whether the name is one of a table of tokens, which others repeat.
bool IsTokenTable(std::string_view name);

// Returns whether a config.json ties the head to the table of tokens. Transformers does so unless a
// config says otherwise.
bool TiesHead(const std::string& config);

}  // namespace shardinit
