// Quotes users' text for scripts, so that a shell, YAML or JSON reads exactly that text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// Returns a word of a POSIX shell, quoted only if necessary.
std::string InShell(std::string_view text);
std::string InShell(const std::vector<std::string>& words);  // joined by spaces

// Returns a YAML 1.1 and 1.2 scalar in double quotes, on one line. Throws Error (kUsage) if the
// text is not UTF-8, which YAML cannot represent.
std::string InYamlScalar(std::string_view text);
// Returns lines as a block for `|`, or in double quotes if a block cannot represent them.
std::string InYamlBlock(const std::string& lines);

// Returns a string or an array of strings, on one line. Throws Error (kUsage) as above.
std::string InJsonText(std::string_view text);
std::string InJsonText(const std::vector<std::string>& texts);

}  // namespace shardinit
