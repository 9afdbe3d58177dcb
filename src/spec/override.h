// Applies command-line overrides to the tree before anything is made of it.
#pragma once

#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Applies each `path=value` in order. Dots separate the parts of a path, which name keys of
// mappings or indices of lists. Where keys hold dots themselves the longest key that leads to a
// match is taken, so every key can be written as it stands:
// `modules.model.embed_tokens.weight.init=zeros`. The value is YAML. The key must exist, save for
// top-level scalars with a default and the keys of a `mesh` that the spec has.
const Node* ApplySets(const Node* root, const std::vector<std::string>& sets, NodeStore& store,
                      Diagnostics& diagnostics);

// `mesh` is like `fsdp=8,tensor=4`: the sizes and the order of mesh axes. Axes that the spec
// declares and `mesh` leaves out have size 1 and come last.
const Node* ApplyMesh(const Node* root, const std::string& mesh, NodeStore& store,
                      Diagnostics& diagnostics);

// Replaces the spec's `sharding` and `rules` by text as after `sharding:`, in which files are
// relative to the current folder.
const Node* ApplySharding(const Node* root, const std::string& sharding, NodeStore& store,
                          Diagnostics& diagnostics);

// Sets a key of `training`, which the spec may lack, to a number.
const Node* ApplyTraining(const Node* root, const std::string& option, const std::string& key,
                          const std::string& value, NodeStore& store, Diagnostics& diagnostics);

// Reads the value of an option: a word, a mapping or list in brackets, or the name of a file, which
// has a dot or a slash. Returns null if it is wrong, which is reported.
const Node* ReadOption(const std::string& option, const std::string& text, NodeStore& store,
                       Diagnostics& diagnostics);

}  // namespace shardinit
