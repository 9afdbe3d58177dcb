// Checks names. Tensor paths become groups of an HDF5 file, folders of other tools and lines on a
// terminal, so only plain characters are allowed.
#pragma once

#include <string_view>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

constexpr size_t kLongestPart = 255;   // bytes of a part of a path, or of any other name
constexpr size_t kLongestPath = 1024;  // bytes, including the indices of repeats

// The `kind` of a tensor that is not trained.
inline constexpr std::string_view kBufferKind = "buffer";

// These return whether text is a valid name. The functions below also report the error.
bool IsIdentifier(std::string_view text);
bool IsPath(std::string_view text);
bool IsModelName(std::string_view text);

// Checks an identifier, [A-Za-z_][A-Za-z0-9_]*, which names a variable, mesh axis, logical axis or
// initializer. `what` names the kind in messages: "mesh axis".
bool CheckIdentifier(const Node& name, std::string_view what, Diagnostics& diagnostics);
// Reports a variable whose name is reserved in expressions, such as `and`.
bool CheckVariable(const Node& name, Diagnostics& diagnostics);

// Checks a path: parts of letters, digits, `_` and `-`, separated by dots. The enclosing modules
// contribute `prefix` bytes to the path.
bool CheckPath(const Node& name, size_t prefix, Diagnostics& diagnostics);

// Checks a tensor's `key`, usually another path: any text without control characters.
bool CheckKey(const Node& key, Diagnostics& diagnostics);

// Checks the model's name, a part of file names: letters, digits, `.`, `_` and `-`.
bool CheckModelName(const Node& name, Diagnostics& diagnostics);

}  // namespace shardinit
