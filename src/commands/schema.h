// Generates the JSON Schema of specs from the tables that the parser uses.
#pragma once

#include <string>
#include <string_view>

#include "spec/keys.h"

namespace shardinit {

std::string SpecSchema();

// Returns the name of the schema's definition for values of this kind, or an empty text.
std::string_view DefinitionOf(SpecKind kind);

}  // namespace shardinit
