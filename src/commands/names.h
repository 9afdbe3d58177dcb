// The names that specs, options and arguments may have, and what there is to say of each, from the
// tables that read them: `list` and `help` show it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

struct NameArgument {
  std::string name, description, default_text;
};

struct NameEntry {
  std::string name, description;
  std::string form = {};  // how it is written with its arguments; empty: the name alone
  std::vector<NameArgument> arguments = {};
};

struct KindOfNames {
  std::string_view name;  // `initializers`
  std::string_view one;   // what one of them is: `an initializer`
  std::string_view use;   // where they are written
  std::string_view key;   // the key of a spec, or the option, that has them as values, or empty
  std::string_view page;  // the manual page
  std::vector<NameEntry> (*entries)();
};

std::span<const KindOfNames> KindsOfNames();

// Returns the lines of a kind: its use, its names and their descriptions.
std::string InText(const KindOfNames& kind);

// Returns `clip(a, b, c), a, but at least b and at most c` of each function but the numbers of
// other frameworks, for editors.
std::vector<std::string> FunctionPhrases();

}  // namespace shardinit
