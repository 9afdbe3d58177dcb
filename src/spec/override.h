// Applies command-line options other than `--set` (set.h) to the tree before anything is made of
// it.
#pragma once

#include <string>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// `mesh` is like `fsdp=8,tensor=4`: the sizes and the order of mesh axes. Axes that the spec
// declares and `mesh` leaves out have size 1 and come last.
const Node* ApplyMesh(const Node* root, const std::string& mesh, NodeStore& store,
                      Diagnostics& diagnostics);

// Replaces the spec's `sharding` and `rules` by text as after `sharding:`, in which files are
// relative to the current folder.
const Node* ApplySharding(const Node* root, const std::string& sharding, NodeStore& store,
                          Diagnostics& diagnostics);

// `source` is like `base=DIR`: the folder of a source that the spec declares.
const Node* ApplySource(const Node* root, const std::string& source, NodeStore& store,
                        Diagnostics& diagnostics);

// Sets a key of `training`, which the spec may lack, to a number.
const Node* ApplyTraining(const Node* root, const std::string& option, const std::string& key,
                          const std::string& value, NodeStore& store, Diagnostics& diagnostics);

// Reads the value of an option: a word, a mapping or list in brackets, or the name of a file, which
// has a dot or a slash. Returns null if it is wrong, which is reported.
const Node* ReadOption(const std::string& option, const std::string& text, NodeStore& store,
                       Diagnostics& diagnostics);

}  // namespace shardinit
