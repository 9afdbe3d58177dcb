// A tree → YAML text.
#pragma once

#include <string>

#include "spec/yaml.h"

namespace shardinit {

// A mapping, one key per line; what fits in a line is written in one, but for the mapping itself.
// Reads back as the same tree.
std::string WriteYaml(const Node& map);

}  // namespace shardinit
