// Explains mistakes of the command line by the words themselves: of a mistyped command CLI11 says
// only that one is required, and a mistyped option swallows its value.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace shardinit {

// Refuses what CLI11 would read as something else: it takes `-output x` for `-o utput x`.
void RefuseMisplaced(const CLI::App& root, const std::vector<std::string>& words);

// Throws Error (kUsage) for words that CLI11 could not parse.
[[noreturn]] void ExplainUsage(const CLI::App& root, const CLI::ParseError& error,
                               const std::vector<std::string>& words);

}  // namespace shardinit
