// Command-line overrides, applied to the tree before anything is made of it.
#pragma once

#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Each `path=value` in order. The path names a key through mappings and, by
// index, lists; dots separate. Where keys hold dots themselves the longest key
// that leads to a match is taken, so every key can be written as it stands:
// `modules.model.embed_tokens.weight.init=zeros`. The value is YAML. The key
// must exist, save for top-level scalars with a default.
const Node* ApplySets(const Node* root, const std::vector<std::string>& sets, NodeStore& store,
                      Diagnostics& diagnostics);

// `fsdp=8,tensor=4`: the sizes and the order of mesh axes. Axes that the spec
// declares and `mesh` leaves out have size 1 and come last.
const Node* ApplyMesh(const Node* root, const std::string& mesh, NodeStore& store,
                      Diagnostics& diagnostics);

// Text as after `sharding:`, instead of the spec's `sharding` and `rules`; files are relative to
// the current folder.
const Node* ApplySharding(const Node* root, const std::string& sharding, NodeStore& store,
                          Diagnostics& diagnostics);

// A number for a key of `training`, which the spec may lack.
const Node* ApplyTraining(const Node* root, const std::string& option, const std::string& key,
                          const std::string& value, NodeStore& store, Diagnostics& diagnostics);

// The value of an option that is a word, a mapping or list in brackets, or the name of a file,
// which has a dot or a slash. Null: it is wrong, which is reported.
const Node* ReadOption(const std::string& option, const std::string& text, NodeStore& store,
                       Diagnostics& diagnostics);

}  // namespace shardinit
