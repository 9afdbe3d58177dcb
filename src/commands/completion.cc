// Prints shell completions, made from the same declarations as `--help`.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "commands/command.h"
#include "report/template.h"

namespace shardinit {
namespace {

struct CompletionOptions {
  explicit CompletionOptions(CLI::App& app) {
    app.add_option("SHELL", shell, "bash, zsh or fish")->required();
  }

  std::string shell;
};

// Returns the flags of one command: `--jobs`, `-o`, …
std::vector<const CLI::Option*> Flags(const CLI::App& app) {
  std::vector<const CLI::Option*> flags;
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) flags.push_back(option);
  }
  return flags;
}

std::vector<std::string> Spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string Words(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : Flags(app)) {
    for (const std::string& name : Spellings(*option)) words += (words.empty() ? "" : " ") + name;
  }
  return words;
}

// Returns the option's only values, such as `a|b|c`, separated by spaces.
std::string Choices(const CLI::Option& option) {
  std::string type = option.get_type_name();
  if (type.find('|') == std::string::npos) return {};
  for (char& c : type) c = c == '|' ? ' ' : c;
  return type;
}

std::string Bash(const CLI::App& root) {
  std::string commands, cases, values;
  for (const CLI::App* app : root.get_subcommands({})) {
    commands += app->get_name() + " ";
    cases += fmt::format("    {}) words=\"{}\" ;;\n", app->get_name(), Words(*app));
    for (const CLI::Option* option : Flags(*app)) {
      const std::string choices = Choices(*option);
      if (choices.empty()) continue;
      values += fmt::format("    {}:{}) COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); return ;;\n",
                            app->get_name(), Spellings(*option).back(), choices);
    }
  }
  return FillTemplate("completion.bash",
                      {{"commands", commands}, {"values", values}, {"cases", cases}});
}

std::string Quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) {
    text.replace(at, 1, "'\\''");
  }
  return "'" + text + "'";
}

std::string Zsh(const CLI::App& root) {
  std::string commands, cases;
  for (const CLI::App* app : root.get_subcommands({})) {
    commands += fmt::format("    {}\n", Quoted(app->get_name() + ":" + app->get_description()));
    std::string arguments;
    for (const CLI::Option* option : Flags(*app)) {
      std::string about;
      for (const char c : option->get_description()) {
        if (c == '[' || c == ']' || c == ':') about += '\\';
        about += c;
      }
      for (const std::string& name : Spellings(*option)) {
        const std::string choices = Choices(*option);
        std::string value;
        if (option->get_items_expected_max() > 0) {
          value = choices.empty() ? ":value:_files" : ":value:(" + choices + ")";
        }
        arguments += " " + Quoted(fmt::format("*{}[{}]{}", name, about, value));
      }
    }
    cases += fmt::format("    {}) _arguments{} '*:file:_files' ;;\n", app->get_name(), arguments);
  }
  return FillTemplate("completion.zsh", {{"commands", commands}, {"cases", cases}});
}

std::string Fish(const CLI::App& root) {
  std::string out;
  for (const CLI::App* app : root.get_subcommands({})) {
    out += fmt::format("complete -c shardinit -n __fish_use_subcommand -a {} -d {}\n",
                       app->get_name(), Quoted(app->get_description()));
    for (const CLI::Option* option : Flags(*app)) {
      out +=
          fmt::format("complete -c shardinit -n '__fish_seen_subcommand_from {}'", app->get_name());
      for (const std::string& name : option->get_snames()) out += " -s " + name;
      for (const std::string& name : option->get_lnames()) out += " -l " + name;
      const std::string choices = Choices(*option);
      if (!choices.empty()) {
        out += fmt::format(" -x -a '{}'", choices);
      } else if (option->get_items_expected_max() > 0) {
        out += " -r";
      }
      out += fmt::format(" -d {}\n", Quoted(option->get_description()));
    }
  }
  return out;
}

ExitCode RunCompletion(const CompletionOptions& options) {
  const std::unique_ptr<Application> application = MakeApplication();
  const CLI::App& root = application->app;
  for (const auto& [shell, write] : {std::pair("bash", &Bash), {"zsh", &Zsh}, {"fish", &Fish}}) {
    if (options.shell != shell) continue;
    Print(write(root));
    return ExitCode::kOk;
  }
  throw Error(ExitCode::kUsage, fmt::format("no completions for `{}`", options.shell),
              "use `bash`, `zsh` or `fish`");
}

}  // namespace

extern const Command kCompletion = {"completion", "Print completions for a shell",
                                    Configure<RunCompletion>};

}  // namespace shardinit
