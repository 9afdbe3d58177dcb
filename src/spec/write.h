// Writes a tree as YAML text.
#pragma once

#include <string>

#include "spec/yaml.h"

namespace shardinit {

// Writes a mapping, one key per line; a value that fits in a line is written in one, but the
// mapping itself is not. The text reads back as the same tree.
std::string WriteYaml(const Node& map);

}  // namespace shardinit
