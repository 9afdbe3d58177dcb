#include "commands/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "base/table.h"
#include "commands/command.h"
#include "commands/complete.h"
#include "spec/keys.h"

namespace shardinit {
namespace {

// Returns all spellings of a command's options: `-o`, `--output`, …
std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (std::string& name : Spellings(*option)) names.push_back(std::move(name));
  }
  return names;
}

// Reports a first word that is not a command.
[[noreturn]] void ExplainCommand(const CLI::App& root, const std::vector<std::string>& words) {
  const std::string& first = words[0];
  const bool is_option = first.starts_with("-");
  for (size_t i = 1; is_option && i < words.size(); ++i) {
    const CLI::App* const app = FindApp(root, words[i]);
    if (app == nullptr) continue;
    if (!Contains(OptionNames(*app), first.substr(0, first.find('=')))) break;
    throw Usage(fmt::format("`{}` must come after the command", first),
                fmt::format("write `shardinit {} {}`", words[i], first));
  }
  const std::vector<std::string> of_root = OptionNames(root);
  std::string closest = Closest(first, is_option ? of_root : NamesOf(Commands()));
  if (Contains(of_root, "--" + first)) closest = "--" + first;
  throw Usage(
      fmt::format("{} `{}`", is_option ? "there is no option" : "unknown command", first),
      closest.empty() ? "see `shardinit --help`" : fmt::format("did you mean `{}`?", closest));
}

// An option that other commands have, and what to use instead.
struct Refusal {
  std::string_view command, option, hint;
};

constexpr std::string_view kWholeCheckpoint =
    "a checkpoint has all tensors of its model: `export --only` writes some, and `digest --only` "
    "makes their values";

constexpr Refusal kRefusals[] = {
    {"gen", "--only", kWholeCheckpoint},
    {"reshard", "--only", kWholeCheckpoint},
    {"plan", "--only",
     "it shows files of whole ranks: `graph --only` shows the shapes and sizes of some tensors"},
    {"validate", "--only", "a spec is checked as a whole: `graph --only` shows some tensors"},
    {"explain", "--only", "give the pattern as PATH"},
    {"verify", "--only", "files are checked as a whole: `stats DIR --only` reads some tensors"},
};

// Returns an empty text for an unknown option.
std::string HintForRefused(std::string_view command, std::string_view option) {
  // A short option may include its value, as in `-j2`.
  if (option.starts_with("-j") || option == "--jobs") {
    return fmt::format("leave it out: `{}` has no work for several threads", command);
  }
  for (const Refusal& refusal : kRefusals) {
    if (refusal.command == command && refusal.option == option) return std::string(refusal.hint);
  }
  return {};
}

// Returns a replacement for an option that a command lacks, such as `--set` for `--seed 1`.
std::string HintForOption(const std::vector<std::string>& words, size_t at,
                          const std::vector<std::string>& known) {
  const size_t equals = words[at].find('=');
  const std::string name = words[at].substr(0, equals);
  const std::string key = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  if (Contains(known, "--set") && Contains(NamesOf(KeysOf(SpecMapping::kModel)), key)) {
    const bool has_next = at + 1 < words.size() && !words[at + 1].starts_with("-");
    return fmt::format("a key of the spec is changed by `--set {}={}`", key,
                       equals != name.npos ? words[at].substr(equals + 1)
                       : has_next          ? words[at + 1]
                                           : "VALUE");
  }
  const std::string refused = HintForRefused(words[0], name);
  if (!refused.empty()) return refused;
  const std::string closest = Closest(name, known);
  return closest.empty() ? fmt::format("see `shardinit {} --help`", words[0])
                         : fmt::format("did you mean `{}`?", closest);
}

// Reports an option that was given several times, or without its value.
void ExplainOption(const CLI::App& app, const CLI::ParseError& error) {
  for (const CLI::Option* option : app.get_options()) {
    const auto most = static_cast<size_t>(option->get_items_expected_max());
    if (!option->nonpositional() || most == 0) continue;
    const bool is_short = option->get_lnames().empty();
    const std::string name =
        is_short ? "-" + option->get_snames()[0] : "--" + option->get_lnames()[0];
    const size_t given = option->results().size();
    if (given > most) {
      throw Usage(fmt::format("`{}` was given {}", name,
                              given == 2 ? "twice" : fmt::format("{} times", given)),
                  "give it once");
    }
    if (given == 0 && std::string_view(error.what()).starts_with(name + ":")) {
      const std::string type = option->get_type_name();
      const char* what = type == "FILE" ? "a file" : type == "DIR" ? "a folder" : "a value";
      throw Usage(fmt::format("`{}` needs {}", name, what),
                  fmt::format("write it as in `{} {}`", name, type));
    }
  }
}

}  // namespace

void RefuseMisplaced(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* const app = words.empty() ? nullptr : FindApp(root, words[0]);
  if (app == nullptr) return;
  const auto mesh = std::ranges::find(words, "--mesh");
  if (words.end() - mesh > 2 && mesh[2].find('=') != mesh[2].npos && !mesh[2].starts_with('-') &&
      !Exists(mesh[2])) {
    throw Usage(fmt::format("`{}` is not part of `--mesh {}`", mesh[2], mesh[1]),
                fmt::format("join the axes with a comma: `--mesh {},{}`", mesh[1], mesh[2]));
  }
  const std::vector<std::string> known = OptionNames(*app);
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (name.size() > 2 && name[0] == '-' && name[1] != '-' && Contains(known, "-" + name)) {
      throw Usage(fmt::format("`{}` has no option `{}`", words[0], name),
                  fmt::format("did you mean `-{}`?", name));
    }
  }
}

void ExplainUsage(const CLI::App& root, const CLI::ParseError& error,
                  const std::vector<std::string>& words) {
  if (words.empty()) throw Usage("no command given", "see `shardinit --help`");
  const CLI::App* const app = FindApp(root, words[0]);
  if (app == nullptr) ExplainCommand(root, words);
  const std::vector<std::string> known = OptionNames(*app);
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (!name.starts_with("-") || name == "-") continue;
    if (name.find_first_not_of("0123456789", 1) == name.npos) continue;  // a negative number
    const bool found = std::ranges::any_of(known, [&](const std::string& option) {
      return option == name || (option.size() == 2 && name.starts_with(option));
    });
    if (found) continue;
    throw Usage(fmt::format("`{}` has no option `{}`", words[0], name),
                HintForOption(words, i, known));
  }
  ExplainOption(*app, error);
  if (const auto set = std::ranges::find(words, "--set"); words.end() - set > 2) {
    const bool has_value = set[1].find('=') != set[1].npos;
    const bool is_next = set[2].find('=') != set[2].npos && !set[2].starts_with('-');
    if (has_value ? is_next : std::string_view(error.what()).ends_with(": " + set[2])) {
      throw Usage(fmt::format("`{}` is not part of `--set {}`", set[2], set[1]),
                  fmt::format("write `--set {}{}{}`", set[1], has_value ? " --set " : "=", set[2]));
    }
  }
  std::string what = error.what();
  // Lower-case the first word, unless it is the name of an argument, such as SPEC.
  if (what.size() > 1 && std::islower(what[1])) what[0] = static_cast<char>(std::tolower(what[0]));
  throw Usage(fmt::format("{}: {}", words[0], what),
              fmt::format("see `shardinit {} --help`", words[0]));
}

}  // namespace shardinit
