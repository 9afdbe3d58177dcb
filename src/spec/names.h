// The rules for names. Tensor paths become groups of an HDF5 file, folders of other tools and lines
// of a terminal, so they are kept plain.
#pragma once

#include <string_view>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

constexpr size_t kLongestPart = 255;   // bytes of a part of a path, or of any other name
constexpr size_t kLongestPath = 1024;  // bytes, with the indices of repeats

// The `kind` of a tensor that is not trained.
inline constexpr std::string_view kBufferKind = "buffer";

// These tell whether text is such a name. Each has a function below that reports what is wrong.
bool IsIdentifier(std::string_view text);
bool IsPath(std::string_view text);
bool IsModelName(std::string_view text);

// An identifier, [A-Za-z_][A-Za-z0-9_]*, names vars, mesh axes, logical axes and initializers.
// `what` names the kind in messages: "mesh axis".
bool CheckIdentifier(const Node& name, std::string_view what, Diagnostics& diagnostics);
// Reports a variable whose name expressions have another meaning for, such as `and`.
bool CheckVariable(const Node& name, Diagnostics& diagnostics);

// A path is parts of letters, digits, `_` and `-`, separated by dots. `prefix` bytes of the path
// stand in the modules around it.
bool CheckPath(const Node& name, size_t prefix, Diagnostics& diagnostics);

// A tensor's `key`, usually another path, is any text without control characters.
bool CheckKey(const Node& key, Diagnostics& diagnostics);

// The model's name becomes a part of file names: letters, digits, `.`, `_` and `-`.
bool CheckModelName(const Node& name, Diagnostics& diagnostics);

}  // namespace shardinit
