// Lists how tensor names in files differ from the names of their model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

struct NameRow {
  enum class Kind {
    kWrapper,  // a part that a wrapper of modules adds to names
    kOldName,  // the end of a name that has changed
    kBuffer,   // the end of the name of a buffer, which is recomputed and useless in files
    kTied,     // the end of the name of a copy of another tensor
  } kind;
  std::string_view text;
  std::string_view now = {};  // kOldName: today's name
  // kBuffer: an extent for each dimension, `1` or a letter; equal letters are equal extents. kTied:
  // kIfConfigTies if the config decides whether the tensor is tied.
  std::string_view form = {};
};

inline constexpr std::string_view kIfConfigTies = "config";

std::span<const NameRow> NameRows();

// Returns the row of that kind whose text is the name or its end after a dot; else null.
const NameRow* FindNameRow(NameRow::Kind kind, std::string_view name);

// Returns whether a tensor with this name and shape is a buffer.
bool IsBuffer(std::string_view name, const std::vector<int64_t>& shape);

// Returns whether the name belongs to a token table, which tied tensors repeat.
bool IsTokenTable(std::string_view name);

// Returns whether a config.json ties the head to the token table. Transformers does so by default.
bool TiesHead(const std::string& config);

}  // namespace shardinit
