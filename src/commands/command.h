// A subcommand: its name, its options and what it does. All of them are rows of
// commands.cc; help, man pages and completions are checked against these.
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

// In the order that `shardinit --help` shows them.
std::span<const Command* const> Commands();

// Standard output is data. Throws Error (kWorld) if it does not arrive.
void Print(std::string_view text);

}  // namespace shardinit
