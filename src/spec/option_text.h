// Makes nodes of the text of an option, each with its place there, and trees that have them.
#pragma once

#include <string>
#include <string_view>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Returns the text of an option as a source; null if it is not clean, which is reported.
const Source* AddOption(const std::string& option, const std::string& text,
                        Diagnostics& diagnostics);

// Returns the place of `length` bytes from byte `begin` of an option's text on.
Span PlaceIn(const Source& source, size_t begin, size_t length);

// Parses the YAML value that starts at byte `begin`; null if it is wrong, which is reported.
const Node* ParseValue(const Source& source, size_t begin, NodeStore& store,
                       Diagnostics& diagnostics);

// Returns a copy of the collection with one more entry.
const Node* Extended(const Node& collection, Node::Entry entry, NodeStore& store);

// Returns a copy of the collection with another value of an entry.
const Node* Replaced(const Node& collection, size_t index, const Node* value, NodeStore& store);

// Returns the map with this value of a key, instead of the one that it has, or last.
const Node* With(const Node& map, Span place, std::string_view key, const Node* value,
                 NodeStore& store);

}  // namespace shardinit
