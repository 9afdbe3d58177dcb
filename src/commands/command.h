// A subcommand has a name, options and an action. All subcommands are rows of commands.cc; help,
// man pages and completions are checked against these.
#pragma once

#include <chrono>
#include <cstdint>
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

// Tells how long ago it was made.
class Stopwatch {
 public:
  int64_t ns() const { return (std::chrono::steady_clock::now() - start_).count(); }
  double seconds() const { return static_cast<double>(ns()) / 1e9; }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace shardinit
