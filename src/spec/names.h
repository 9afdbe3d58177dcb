// What may be called what. Tensor paths become groups of an HDF5 file, folders
// of other tools and lines of a terminal, so they are kept plain.
#pragma once

#include <string>
#include <string_view>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

constexpr size_t kLongestPart = 255;   // Of a path; also of every other name.
constexpr size_t kLongestPath = 1024;  // With the indices of repeats.

// The `kind` of a tensor that is not trained.
inline constexpr std::string_view kBufferKind = "buffer";

// Whether text may be such a name. Each has a function below that reports what is wrong.
bool IsIdentifier(std::string_view text);
bool IsPath(std::string_view text);
bool IsModelName(std::string_view text);

// [A-Za-z_][A-Za-z0-9_]*: vars, mesh axes, logical axes, initializers.
// `what` names the kind in messages: "mesh axis".
bool CheckIdentifier(const Node& name, std::string_view what, Diagnostics& diagnostics);

// Parts of letters, digits, `_` and `-`, separated by dots. `prefix` bytes of
// the path stand in the modules around it.
bool CheckPath(const Node& name, size_t prefix, Diagnostics& diagnostics);

// A tensor's `key`, usually another path: any text without control characters.
bool CheckKey(const Node& key, Diagnostics& diagnostics);

// The model's name, which names files: letters, digits, `.`, `_` and `-`.
bool CheckModelName(const Node& name, Diagnostics& diagnostics);

}  // namespace shardinit
