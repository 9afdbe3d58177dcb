// Lists and describes the names that specs, options and arguments accept, for `list` and `help`.
// The names come from the tables that the parsers use.
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
  std::string form = {};  // the name with its arguments; empty: the name by itself
  std::vector<NameArgument> arguments = {};
};

struct KindOfNames {
  std::string_view name;  // `initializers`
  std::string_view one;   // the phrase for one name: `an initializer`
  std::string_view use;   // where to write the names
  std::string_view key;   // the spec key or option whose values are these names, or empty
  std::string_view page;  // the manual page
  std::vector<NameEntry> (*entries)();
};

std::span<const KindOfNames> KindsOfNames();

// Returns the text of a kind: its use, its names and their descriptions.
std::string InText(const KindOfNames& kind);

// Returns `clip(a, b, c), a, but at least b and at most c` for each function, for editors. Skips
// the functions that give other frameworks' numbers.
std::vector<std::string> FunctionPhrases();

}  // namespace shardinit
