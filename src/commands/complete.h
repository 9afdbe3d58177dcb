// Completes command lines: shells run `shardinit __complete WORD…`, whose last word ends at the
// cursor.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// A text that the same word may continue ends with `=`, `.` or `,`.
struct Candidate {
  std::string text;
  std::string about = {};  // for people
};

struct Candidates {
  std::vector<Candidate> words = {};
  bool files = false;  // also file names, which shells list better
};

// The words before the one at the cursor.
struct TypedLine {
  std::map<std::string, std::vector<std::string>> options = {};  // values, by the last spelling
  std::vector<std::string> positionals = {};

  std::vector<std::string> All(const std::string& option) const;
  std::string Last(const std::string& option) const;  // empty if the option is not given
};

// Returns the command of that name, or null.
const CLI::App* FindApp(const CLI::App& root, std::string_view name);

// Returns all spellings of an option, such as `--jobs` and `-j`.
std::vector<std::string> Spellings(const CLI::Option& option);

// Returns the possible values of an option or argument of a command; `typed` is the typed part of
// the value. Most of the values need not begin with `typed`.
Candidates FindCandidates(const CLI::App& command, const CLI::Option& option, const TypedLine& line,
                          std::string_view typed);

// Prints one line for each candidate: the text, a tab, its description. Ends with `:files` if file
// names are possible. Prints nothing if that is unknown or takes too long.
void Complete(const std::vector<std::string>& words);

}  // namespace shardinit
