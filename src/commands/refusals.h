// Says why a command has not an option that others have, and what to use instead.
#pragma once

#include <string>
#include <string_view>

namespace shardinit {

// Returns a hint; empty: nothing is known of the option.
std::string HintForRefused(std::string_view command, std::string_view option);

}  // namespace shardinit
