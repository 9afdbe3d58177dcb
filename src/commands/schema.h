// The JSON Schema of specs, from the tables that read them.
#pragma once

#include <string>
#include <string_view>

#include "spec/keys.h"

namespace shardinit {

std::string SpecSchema();

// Returns the name of the definition that values of such a key are instances of, or an empty text.
std::string_view DefinitionOf(SpecKind kind);

}  // namespace shardinit
