// Declares a subcommand: its name, options and action. application.cc lists all of them; tests
// check help, man pages and completions against the list.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace shardinit {

struct Command {
  std::string_view name;
  std::string_view summary;
  // Declares the options on `app` and returns what to run once they are parsed.
  std::function<ExitCode()> (*configure)(CLI::App& app);
  // Not null: runs another program, which has its own options, in place of this one. Returns if the
  // program is not installed.
  void (*pass_on)(const std::vector<std::string>& words) = nullptr;
};

// Configures a command for `run`; constructing its options declares them on `app`. If `run` returns
// nothing, the exit code is kOk.
template <typename Result, typename Options>
Options OptionsOf(Result (*run)(const Options&));
template <auto run>
std::function<ExitCode()> Configure(CLI::App& app) {
  return [options = std::make_shared<decltype(OptionsOf(run))>(app)] {
    if constexpr (std::is_same_v<decltype(run(*options)), ExitCode>) return run(*options);
    run(*options);
    return ExitCode::kOk;
  };
}

// Returns the commands in the order of `shardinit --help`.
std::span<const Command* const> Commands();

// Prints text for people to standard output, without characters that could change the terminal.
// Throws Error (kWorld) if the text cannot be written.
void Print(std::string_view text);
// Prints text for programs, such as a script or a spec, byte for byte.
void PrintExactly(std::string_view text);

// Reports a problem of the input on standard error and, if `-o` writes a report for people, in that
// report. JSON already contains it.
void Report(std::string_view finding, bool is_json);

// Prints a summary of the work or of a successful check, unless --quiet is given.
void PrintUnlessQuiet(std::string_view text);

// Measures the time since its construction.
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
  std::function<ExitCode()> run;  // runs the parsed command
};

std::unique_ptr<Application> MakeApplication();

// Returns the help of a command, with only one blank line between groups.
std::string HelpOf(const CLI::App& app);

// Parses and runs the command line. Usage errors become Error (kUsage) with the command's usage as
// the hint; `--help` and `--version` print and return kOk.
ExitCode RunCommandLine(int argc, const char* const* argv);

}  // namespace shardinit
