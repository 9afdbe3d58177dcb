// Puts every command of the table under one CLI11 application.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "base/error.h"

namespace shardinit {

struct Application {
  CLI::App app;
  bool version = false;
  std::function<ExitCode()> run;  // runs the command that was parsed
};

std::unique_ptr<Application> MakeApplication();

// Parses and runs the command line. Usage errors become Error (kUsage) with the command's usage as
// their hint; `--help` and `--version` print and return kOk.
ExitCode RunCommandLine(int argc, const char* const* argv);

}  // namespace shardinit
