// A spec file and the files that it includes → one tree.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Reads `path` (`-`: standard input) unless its `text` is here, parses it, and
// merges what its `include` names underneath. Mappings are merged key by key; everything else of
// the including file replaces what was included, and a later include an earlier one. An initializer
// and a `repeat` are replaced whole, since merging the two would make a third that nobody wrote.
//
// A config.json of Hugging Face becomes a spec that includes its family's (spec/hugging_face.h).
//
// Null if there is no mapping to go on with. Throws Error if `path` itself
// cannot be read; an include that cannot be read is reported where it is named.
const Node* LoadTree(const std::string& path, const std::optional<std::string>& text,
                     NodeStore& store, Diagnostics& diagnostics);

// The spec that a config.json is, as it would be written: what it includes is not in it. Null if it
// cannot be one, which is reported. Throws Error if the file cannot be read.
const Node* LoadConfigJson(const std::string& path, NodeStore& store, Diagnostics& diagnostics);

// A value of words, as of `sharding`, or a list of such, with the trees of files in place of their
// names, which have a dot or a slash and are relative to `folder`. Null nodes where a file is
// wrong, which is reported.
const Node* LoadNamedFiles(const Node& value, const std::filesystem::path& folder, NodeStore& store,
                           Diagnostics& diagnostics);

}  // namespace shardinit
