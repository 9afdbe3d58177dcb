// Parses the text of a command-line option into nodes with positions, and inserts them into trees.
#pragma once

#include <string>
#include <string_view>

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Returns the text of an option as a source. If it is not clean, reports it and returns null.
const Source* AddOption(const std::string& option, const std::string& text,
                        Diagnostics& diagnostics);

// Returns the position of `length` bytes from byte `begin` of an option's text.
Span PlaceIn(const Source& source, size_t begin, size_t length);

// Parses the YAML value that starts at byte `begin`. If it is invalid, reports it and returns null.
const Node* ParseValue(const Source& source, size_t begin, NodeStore& store,
                       Diagnostics& diagnostics);

// Returns a copy of the collection with one more entry.
const Node* Extended(const Node& collection, Node::Entry entry, NodeStore& store);

// Returns a copy of the collection with the value of entry `index` replaced.
const Node* Replaced(const Node& collection, size_t index, const Node* value, NodeStore& store);

// Returns a copy of the map with this value for `key`, replaced or appended.
const Node* WithEntry(const Node& map, Span place, std::string_view key, const Node* value,
                      NodeStore& store);

}  // namespace shardinit
