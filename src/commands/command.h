// A subcommand has a name, options and an action. All subcommands are rows of application.cc; help,
// man pages and completions are checked against these.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace shardinit {

struct Command {
  std::string_view name;
  std::string_view summary;
  // Declares the options on `app` and returns what to run once they are parsed.
  std::function<ExitCode()> (*configure)(CLI::App& app);
  // Not null: the words are another program's, with its own options. Becomes that program, or
  // returns if it is not here.
  void (*pass_on)(const std::vector<std::string>& words) = nullptr;
};

// Configures a command with options that declare themselves when they are made, for `run`.
template <typename Options>
Options OptionsOf(ExitCode (*run)(const Options&));
template <auto run>
std::function<ExitCode()> Configure(CLI::App& app) {
  return [options = std::make_shared<decltype(OptionsOf(run))>(app)] { return run(*options); };
}

// Returns the commands in the order of `shardinit --help`.
std::span<const Command* const> Commands();

// Prints text for people to standard output, without characters that could change the terminal.
// Throws Error (kWorld) if it does not arrive.
void Print(std::string_view text);
// Prints text for programs, such as a script or a spec, byte for byte.
void PrintExactly(std::string_view text);

// Tells what is wrong with what was examined: on standard error, and where `-o` writes a report for
// people. In JSON it is among the rest.
void Report(std::string_view finding, bool is_json);

// Prints what was done or found to be well, which --quiet leaves out.
void PrintUnlessQuiet(std::string_view text);

// Tells how long ago it was made.
class Stopwatch {
 public:
  int64_t ns() const { return (std::chrono::steady_clock::now() - start_).count(); }
  double seconds() const { return static_cast<double>(ns()) / 1e9; }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

struct Application {
  CLI::App app;
  bool version = false;
  std::function<ExitCode()> run;  // runs the command that was parsed
};

std::unique_ptr<Application> MakeApplication();

// Returns the help of a command, without the second of two blank lines between groups.
std::string HelpOf(const CLI::App& app);

// Parses and runs the command line. Usage errors become Error (kUsage) with the command's usage as
// their hint; `--help` and `--version` print and return kOk.
ExitCode RunCommandLine(int argc, const char* const* argv);

}  // namespace shardinit
