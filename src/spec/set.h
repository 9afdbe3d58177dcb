// Applies `--set`, which changes values of the tree before anything is made of it, and adds some.
#pragma once

#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Applies each `path=value` in order. Dots separate the parts of a path, which name keys of
// mappings or indices of lists. Where keys hold dots themselves the longest key that leads to a
// match is taken, so every key can be written as it stands:
// `modules.model.embed_tokens.weight.init=zeros`. The value is YAML.
//
// What the spec lacks is added where a mapping may hold it: a key of a table (`KeysOf`), or a name
// that nobody could take for a misspelling of one that is there. `+path=value` adds the name even
// then. An item is added to a list as `+`, or by the number that it gets.
const Node* ApplySets(const Node* root, const std::vector<std::string>& sets, NodeStore& store,
                      Diagnostics& diagnostics);

}  // namespace shardinit
