// Says what may stand at the cursor of a command line. Shells ask `shardinit __complete WORD…`,
// whose last word ends at the cursor.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// Text behind which more of the same word follows ends with one of `=`, `.` and `,`.
struct Candidate {
  std::string text;
  std::string about = {};  // for people
};

struct Offer {
  std::vector<Candidate> words = {};
  bool files = false;  // names of files, too, which shells list better
};

// The words before the one at the cursor.
struct TypedLine {
  std::map<std::string, std::vector<std::string>> options = {};  // values, by the last spelling
  std::vector<std::string> positionals = {};

  std::vector<std::string> All(const std::string& option) const;
  std::string Last(const std::string& option) const;  // empty: it is not given
};

// Returns `--jobs`, `-j`, … of an option.
std::vector<std::string> Spellings(const CLI::Option& option);

// Returns the values that an option or argument of a command may have; `typed` is what is there of
// the value. Most of them need not begin with it.
Offer OfferFor(const CLI::App& command, const CLI::Option& option, const TypedLine& line,
               std::string_view typed);

// Prints what may stand there, a line for each: the text, a tab, what it is; at the end `:files` if
// files may stand there. Prints nothing if that is not known or takes long.
void Complete(const std::vector<std::string>& words);

}  // namespace shardinit
