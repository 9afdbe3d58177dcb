// Reads the answers of object stores: elements by name, which are not nested in their own kind.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// Returns what is within each element of this name, in order, not decoded.
std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name);

// Returns the text of the first element of this name; empty: there is none.
std::string XmlText(std::string_view xml, std::string_view name);

}  // namespace shardinit
