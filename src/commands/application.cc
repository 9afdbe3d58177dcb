#include "commands/application.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <cctype>

#include "base/json.h"
#include "base/local_path.h"
#include "base/suggest.h"
#include "commands/command.h"
#include "kernels/kernels.h"
#include "plan/plan.h"
#include "report/text.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

constexpr char kVersion[] = SHARDINIT_VERSION;
#ifdef __clang__
constexpr char kCompiler[] = __VERSION__;  // includes the compiler's name
#else
constexpr char kCompiler[] = "GCC " __VERSION__;
#endif

// Formats help like CLI11, but without the blank lines and capital headings that would not fit a
// man page.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    return option->get_items_expected_max() == 0 || type.empty() || option->get_positional()
               ? ""
               : " " + type;
  }
};

void PrintVersion(bool json) {
  if (!json) {
    Print(fmt::format("shardinit {} (contract {}, format {}, kernels {})\n", kVersion,
                      kContractVersion, kFormatVersion, kernels::ActiveTarget()));
    return;
  }
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Member("version", kVersion);
  out.Member("contract_version", kContractVersion).Member("format_version", kFormatVersion);
  out.Member("target", kernels::ActiveTarget()).Key("targets").BeginArray();
  for (const std::string& target : kernels::Targets()) out.Value(target);
  out.EndArray().Member("compiler", kCompiler);
  out.Member("hdf5", fmt::format("{}.{}.{}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE));
  out.EndObject();
  Print(out.Finish());
}

std::vector<std::string> CommandNames() {
  std::vector<std::string> names;
  for (const Command* command : Commands()) names.emplace_back(command->name);
  return names;
}

// Explains usage errors by the words themselves: of a mistyped command CLI11 says only that one is
// required, and a mistyped option swallows its value.
[[noreturn]] void ExplainUsage(const CLI::App& root, const CLI::ParseError& error,
                               const std::vector<std::string>& words) {
  if (words.empty()) {
    throw Error(ExitCode::kUsage, "no command given", "see `shardinit --help`");
  }
  const auto names = CommandNames();
  const CLI::App* app = nullptr;
  for (const CLI::App* sub : root.get_subcommands({})) {
    if (sub->get_name() == words[0]) app = sub;
  }
  if (app == nullptr) {
    const bool is_option = words[0].starts_with("-");
    const std::string closest =
        Closest(words[0], is_option ? std::vector<std::string>{"--help", "--version"} : names);
    throw Error(
        ExitCode::kUsage,
        fmt::format("{} `{}`", is_option ? "there is no option" : "unknown command", words[0]),
        closest.empty() ? "see `shardinit --help`" : fmt::format("did you mean `{}`?", closest));
  }
  const std::string help = fmt::format("see `shardinit {} --help`", words[0]);
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (!name.starts_with("-") || name == "-") continue;
    if (name.find_first_not_of("0123456789", 1) == name.npos) continue;  // a negative number
    std::vector<std::string> known;
    bool found = false;
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& l : option->get_lnames()) known.push_back("--" + l);
      for (const std::string& s : option->get_snames()) known.push_back("-" + s);
    }
    for (const std::string& option : known) {
      found |= option == name || (option.size() == 2 && name.starts_with(option));
    }
    if (found) continue;
    const std::string closest = Closest(name, known);
    throw Error(ExitCode::kUsage, fmt::format("`{}` has no option `{}`", words[0], name),
                closest.empty() ? help : fmt::format("did you mean `{}`?", closest));
  }
  std::string what = error.what();
  // A word becomes lower-case; the name of an argument, such as SPEC, stays.
  if (what.size() > 1 && std::islower(what[1])) what[0] = static_cast<char>(std::tolower(what[0]));
  throw Error(ExitCode::kUsage, fmt::format("{}: {}", words[0], what), help);
}

}  // namespace

std::unique_ptr<Application> MakeApplication() {
  auto application = std::make_unique<Application>();
  CLI::App& app = application->app;
  app.name("shardinit");
  app.description(
      "Initialize large models: a spec in, sharded checkpoints out.\n"
      "The same bits on every mesh, machine, compiler and instruction set.");
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "Show this help");
  app.add_flag("-V,--version", application->version,
               "Show the version; with --json, how it was built");
  app.footer("See shardinit(1), and shardinit-spec(5) for how to write a spec.");
  for (const Command* command : Commands()) {
    CLI::App* sub = app.add_subcommand(std::string(command->name), std::string(command->summary));
    sub->formatter(std::make_shared<HelpFormatter>());
    sub->set_help_flag("-h,--help", "Show this help");
    sub->footer(fmt::format("See shardinit-{}(1).", command->name));
    sub->callback([application = application.get(), run = command->configure(*sub)] {
      application->run = run;
    });
  }
  return application;
}

ExitCode RunCommandLine(int argc, const char* const* argv) {
  const std::vector<std::string> words(argv + (argc > 0), argv + argc);
  const auto given = [&words](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (words.size() <= 2 && (given("--version") || given("-V"))) {
    PrintVersion(given("--json"));
    return ExitCode::kOk;
  }
  const auto application = MakeApplication();
  CLI::App& app = application->app;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto parsed = app.get_subcommands();
    Print(parsed.empty() ? app.help() : parsed[0]->help("shardinit"));
    return ExitCode::kOk;
  } catch (const CLI::ParseError& e) {
    ExplainUsage(app, e, words);
  }
  // A name of another kind of store would be made or looked for here as a folder `s3:`.
  for (const CLI::Option* option : app.get_subcommands()[0]->get_options()) {
    for (const std::string& value : option->results()) RequireLocal(value);
  }
  return application->run();
}

}  // namespace shardinit
