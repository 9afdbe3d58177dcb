// Reads a spec file and the files that it includes into one tree.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/diagnostics.h"
#include "spec/hugging_face.h"
#include "spec/yaml.h"

namespace shardinit {

// Reads `path` (`-`: standard input, and a name that no file has: what is shipped under it) unless
// `text` holds its content, parses it, and merges what its `include` names underneath. Mappings are
// merged key by key; everything else of the including file replaces what was included, and a later
// include replaces an earlier one. An initializer, a `repeat`, a `sharding` and a list of mesh axes
// are replaced whole: a mixture of the two would be one that nobody wrote.
//
// A config.json of Hugging Face becomes a spec that includes its family's (spec/hugging_face.h).
//
// Returns null if there is no mapping to go on with. Throws Error if `path` itself cannot be read;
// an include that cannot be read is reported where it is named.
const Node* LoadTree(const std::string& path, const std::optional<std::string>& text,
                     NodeStore& store, Diagnostics& diagnostics);

// Returns the spec that a config.json stands for, as a user would write it, without the content of
// its include. Returns null if it cannot be one, which is reported. Throws Error if the file cannot
// be read. `defaults` becomes the fields that the file lacks.
const Node* LoadConfigJson(const std::string& path, NodeStore& store, Diagnostics& diagnostics,
                           FieldDefaults& defaults);

// Replaces names of files by the trees of these files, in a word, such as the value of `sharding`,
// or in a list of words. A name of a file has a dot or a slash and is relative to `folder`. A file
// that is wrong is reported and becomes a null node.
const Node* LoadNamedFiles(const Node& value, const std::filesystem::path& folder, NodeStore& store,
                           Diagnostics& diagnostics);

// Returns the spec with the value of `--sharding`, in which names of files are relative to the
// working directory, and a word may be a shipped sharding's name. A file that is a spec without
// modules replaces the mesh and the variables that it has, too.
const Node* WithSharding(const Node& root, const Node& value, NodeStore& store,
                         Diagnostics& diagnostics);

}  // namespace shardinit
