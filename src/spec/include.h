// Reads a spec file and the files that it includes into one tree.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/diagnostics.h"
#include "spec/hugging_face.h"
#include "spec/yaml.h"

namespace shardinit {

// Parses the spec at `path`, or `text` if it is given, and merges it over the files that its
// `include` names. `path` may be `-` for standard input. If no file has this name, reads the
// shipped spec of this name.
//
// The including file overrides its includes, and later includes override earlier ones. Mappings are
// merged key by key, and lists of assertions are joined. An initializer, a `repeat`, a `sharding`
// and a list of mesh axes are replaced whole, because nobody wrote their mixture.
//
// A config.json of Hugging Face becomes a spec that includes its family's file
// (spec/hugging_face.h).
//
// With `is_widened`, the quantization of a config.json does not count: see SpecRequest.
//
// Returns null if the spec cannot be loaded as a mapping. Throws Error if `path` cannot be read. An
// include that cannot be read is reported where it is named.
const Node* LoadTree(const std::string& path, const std::optional<std::string>& text,
                     NodeStore& store, Diagnostics& diagnostics, bool is_widened = false);

// Converts a config.json, or `text` if it is given, to a spec as a user would write it, without the
// content of its include.
// Reports an error and returns null if the file cannot be converted. Throws Error if it cannot be
// read. Stores the fields that the file lacks in `defaults`.
const Node* LoadConfigJson(const std::string& path, const std::optional<std::string>& text,
                           NodeStore& store, Diagnostics& diagnostics, FieldDefaults& defaults);

// Replaces the file names in `value` by the trees of these files. `value` is a word, such as the
// value of `sharding`, or a list of words. A file name has a dot or a slash and is relative to
// `folder`. A bad file is reported and becomes a null node.
const Node* LoadNamedFiles(const Node& value, const std::filesystem::path& folder, NodeStore& store,
                           Diagnostics& diagnostics);

// Returns the spec with `value` from `--sharding` applied. File names are relative to the working
// directory, and a word may name a shipped sharding. If a file is a spec without modules, its mesh
// and variables replace the spec's.
const Node* WithSharding(const Node& root, const Node& value, NodeStore& store,
                         Diagnostics& diagnostics);

}  // namespace shardinit
