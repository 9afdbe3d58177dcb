// Writes text so that a shell, YAML or JSON reads exactly it: what a user gives becomes part of
// scripts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// Returns a word of a POSIX shell, in quotes unless it needs none.
std::string InShell(std::string_view text);
std::string InShell(const std::vector<std::string>& words);  // words with spaces between them

// Returns a scalar of YAML 1.1 and 1.2 in double quotes, on one line. Throws Error (kUsage) if the
// text is not UTF-8, which YAML cannot say.
std::string InYamlScalar(std::string_view text);
// Returns lines as the block behind a `|`, or in double quotes if a block cannot hold them.
std::string InYamlBlock(const std::string& lines);

// Returns a text or an array of texts, on one line. Throws Error (kUsage) as above.
std::string InJsonText(std::string_view text);
std::string InJsonText(const std::vector<std::string>& texts);

}  // namespace shardinit
