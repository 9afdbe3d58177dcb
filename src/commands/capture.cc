// Runs shardinit-capture, a program of the Python package, with the given words.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "commands/command.h"

namespace shardinit {
namespace {

constexpr char kCaptureProgram[] = "shardinit-capture";

// Runs the program next to this one, where a wheel installs it, or else the one on PATH. Returns if
// it is missing.
void RunCaptureWith(const std::vector<std::string>& words) {
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::string program = (folder / kCaptureProgram).string();
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  for (const std::string& path : {program, std::string(kCaptureProgram)}) {
    execvp(path.c_str(), arguments.data());
    if (errno != ENOENT && errno != ENOTDIR) throw SystemError("run", path);
  }
}

}  // namespace

extern const Command kCapture = {
    .name = "capture",
    .summary = "Create a spec from a PyTorch or JAX constructor",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      app.prefix_command();
      app.add_option("ARGUMENT...", "The arguments of shardinit-capture, a program in Python");
      return []() -> ExitCode {
        throw Usage(fmt::format("`{}` is not installed", kCaptureProgram),
                    "`pip install shardinit-*.whl` installs it, and from a clone "
                    "`pip install ./src/python`; it needs PyTorch or JAX");
      };
    },
    .pass_on = RunCaptureWith,
};

}  // namespace shardinit
