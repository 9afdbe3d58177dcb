// Explains command-line mistakes from the words themselves. For a mistyped command, CLI11 says only
// that one is required; a mistyped option swallows its value.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace shardinit {

// Rejects words that CLI11 would misread: it treats `-output x` as `-o utput x`.
void RefuseMisplaced(const CLI::App& root, const std::vector<std::string>& words);

// Throws Error (kUsage) for words that CLI11 could not parse.
[[noreturn]] void ExplainUsage(const CLI::App& root, const CLI::ParseError& error,
                               const std::vector<std::string>& words);

}  // namespace shardinit
