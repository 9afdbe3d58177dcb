// Writes a tree as YAML text.
#pragma once

#include <string>

#include "spec/yaml.h"

namespace shardinit {

// Writes a mapping, one key per line. Puts a value on one line if it fits, but never the mapping
// itself. Parsing the text gives the same tree.
std::string WriteYaml(const Node& map);

}  // namespace shardinit
