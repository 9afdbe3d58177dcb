// Explains why a command lacks an option that other commands have, and what to use instead.
#pragma once

#include <string>
#include <string_view>

namespace shardinit {

// Returns a hint, or an empty text for an unknown option.
std::string HintForRefused(std::string_view command, std::string_view option);

}  // namespace shardinit
