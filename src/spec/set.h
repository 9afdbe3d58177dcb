// Applies `--set`, which changes or adds values of the tree before it is parsed into a spec.
#pragma once

#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Applies each `path=value` in order. Dots separate the parts of a path, which name keys of
// mappings or indices of lists. If keys contain dots, the longest key that leads to a match wins,
// so users can write every key as it is: `modules.model.embed_tokens.weight.init=zeros`. The value
// is YAML.
//
// If the spec lacks the path, it is added where a mapping may hold it: a key of a table (`KeysOf`),
// or a name that cannot be a misspelling of an existing one. `+path=value` adds the name even then.
// `+` or the next index appends an item to a list.
const Node* ApplySets(const Node* root, const std::vector<std::string>& sets, NodeStore& store,
                      Diagnostics& diagnostics);

}  // namespace shardinit
