// Applies command-line options other than `--set` (set.h) to the tree before it is parsed.
#pragma once

#include <string>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Sets the sizes and the order of mesh axes. `mesh` is like `fsdp=8,tensor=4`. Axes that the spec
// declares and `mesh` omits get size 1 and come last.
const Node* ApplyMesh(const Node* root, const std::string& mesh, NodeStore& store,
                      Diagnostics& diagnostics);

// Replaces the spec's `sharding` and `rules`. `sharding` is text as after `sharding:`, in which
// file names are relative to the working directory.
const Node* ApplySharding(const Node* root, const std::string& sharding, NodeStore& store,
                          Diagnostics& diagnostics);

// Sets the folder of a source that the spec declares. `source` is like `base=DIR`.
const Node* ApplySource(const Node* root, const std::string& source, NodeStore& store,
                        Diagnostics& diagnostics);

// Sets a key of `training`, which the spec may lack, to a number.
const Node* ApplyTraining(const Node* root, const std::string& option, const std::string& key,
                          const std::string& value, NodeStore& store, Diagnostics& diagnostics);

// Reads the value of an option: a word, a mapping or list in brackets, or a file name, which has a
// dot or a slash. Reports an error and returns null if the value is invalid.
const Node* ReadOption(const std::string& option, const std::string& text, NodeStore& store,
                       Diagnostics& diagnostics);

}  // namespace shardinit
