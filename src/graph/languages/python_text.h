// Parses Python's text of values: `PartitionSpec('fsdp', None, ('tensor', 'data'))`,
// `Shard(dim=0)`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

struct PythonValue {
  enum Kind { kNone, kName, kSequence, kCall };  // a name may be quoted, or an expression
  Kind kind;
  std::string text;     // as written, but without a name's quotes
  std::string name;     // name of a call
  std::string keyword;  // `dim` in `dim=0`
  Span span;
  std::vector<PythonValue> items;  // items of a sequence, or arguments of a call
};

// Reports unclosed parentheses and quotes.
std::optional<PythonValue> ParsePython(const Node& text, Diagnostics& diagnostics);

}  // namespace shardinit
