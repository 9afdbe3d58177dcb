// Prints shell completions: scripts that ask the program itself for the candidates at the cursor.
#include <fmt/format.h>

#include "commands/command.h"
#include "report/template.h"

namespace shardinit {
namespace {

struct CompletionOptions {
  explicit CompletionOptions(CLI::App& app) {
    app.add_option("SHELL", shell, "bash, zsh or fish")->required()->type_name("bash|zsh|fish");
  }

  std::string shell;
};

void RunCompletion(const CompletionOptions& options) {
  for (const std::string_view shell : {"bash", "zsh", "fish"}) {
    if (options.shell != shell) continue;
    return PrintExactly(FillTemplate(fmt::format("completion.{}", shell), {}));
  }
  throw Usage(fmt::format("no completions for `{}`", options.shell), "use `bash`, `zsh` or `fish`");
}

}  // namespace

extern const Command kCompletion = {"completion", "Print completions for a shell",
                                    Configure<RunCompletion>};

}  // namespace shardinit
