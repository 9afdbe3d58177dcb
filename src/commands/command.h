// A subcommand has a name, options and an action. All subcommands are rows of commands.cc; help,
// man pages and completions are checked against these.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace CLI {
class App;
}

namespace shardinit {

struct Command {
  std::string_view name;
  std::string_view summary;
  // Declares the options on `app` and returns what to run once they are parsed.
  std::function<ExitCode()> (*configure)(CLI::App& app);
};

// Returns the commands in the order of `shardinit --help`.
std::span<const Command* const> Commands();

// Prints data to standard output. Throws Error (kWorld) if it does not arrive.
void Print(std::string_view text);

}  // namespace shardinit
