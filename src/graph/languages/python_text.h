// Values as Python prints them: `PartitionSpec('fsdp', None, ('tensor', 'data'))`, `Shard(dim=0)`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

struct PythonValue {
  enum Kind { kNone, kName, kSequence, kCall };  // A name: also in quotes; or an expression.
  Kind kind;
  std::string text;     // As it is written; of a name in quotes without these.
  std::string name;     // Of a call.
  std::string keyword;  // `dim` of `dim=0`.
  Span span;
  std::vector<PythonValue> items;  // Of a sequence; arguments of a call.
};

// Reports parentheses and quotes that do not close.
std::optional<PythonValue> ParsePython(const Node& text, Diagnostics& diagnostics);

}  // namespace shardinit
