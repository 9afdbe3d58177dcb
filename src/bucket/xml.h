// Extracts elements by name from the XML of object stores. Elements must not be nested in elements
// of the same name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// Returns the undecoded contents of each element of this name, in order.
std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name);

// Returns the text of the first element of this name; empty if it does not exist.
std::string XmlText(std::string_view xml, std::string_view name);

}  // namespace shardinit
