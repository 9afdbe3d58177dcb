#include <fmt/format.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/result_file.h"
#include "base/sha256.h"
#include "base/suggest.h"
#include "base/talk.h"
#include "commands/command.h"
#include "commands/options.h"
#include "commands/refusals.h"
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

std::string* printed = nullptr;  // takes what is printed, unless it is null

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

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
  out.Member("target", kernels::ActiveTarget()).Member("targets", kernels::Targets());
  out.Member("sha256_instructions", Sha256TakesInstructions());
  out.Member("compiler", kCompiler);
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
    const std::string refused = HintForRefused(words[0], name);
    const std::string closest = refused.empty() ? Closest(name, known) : std::string();
    throw Error(ExitCode::kUsage, fmt::format("`{}` has no option `{}`", words[0], name),
                !refused.empty()  ? refused
                : closest.empty() ? help
                                  : fmt::format("did you mean `{}`?", closest));
  }
  std::string what = error.what();
  // A word becomes lower-case; the name of an argument, such as SPEC, stays.
  if (what.size() > 1 && std::islower(what[1])) what[0] = static_cast<char>(std::tolower(what[0]));
  throw Error(ExitCode::kUsage, fmt::format("{}: {}", words[0], what), help);
}

// Returns the help of a command, without the second of two blank lines between groups.
std::string HelpOf(const CLI::App& app) {
  std::string text = app.get_parent() == nullptr ? app.help() : app.help("shardinit");
  for (size_t at = 0; (at = text.find("\n\n\n", at)) != text.npos;) text.erase(at, 1);
  return text;
}

// Says what the process has cost so far.
void TalkOfCost(const Stopwatch& time) {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  Talk(fmt::format("shardinit: {:.3f} s, {:.3f} s of processors, at most {} of memory, {}\n",
                   time.seconds(), SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime),
                   InBytes(int64_t{usage.ru_maxrss} * 1024), kernels::ActiveTarget()));
}

// Runs a command. A file in place of standard output is looked at before the work, and again when
// the command has read its inputs.
ExitCode RunWith(const CommonOptions& common, const std::function<ExitCode()>& run) {
  const Stopwatch time;
  if (common.quiet && common.verbose) {
    throw Error(ExitCode::kUsage, "`--quiet` and `--verbose` are opposites", "give one of them");
  }
  if (common.quiet) SetLoudness(Loudness::kQuiet);
  if (common.verbose) SetLoudness(Loudness::kVerbose);
  std::optional<ResultFile> file;
  std::string text;
  if (common.redirects()) {
    file.emplace(ResultKind{"-o", "file", {}}, common.output, common.force);
    printed = &text;
  }
  const ExitCode code = run();
  if (file) file->Write(text);
  if (common.verbose) TalkOfCost(time);
  return code;
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
    const auto run = command->configure(*sub);
    const auto common = std::make_shared<CommonOptions>();
    common->AddTo(*sub);
    sub->callback([application = application.get(), run, common, sub] {
      if (common->redirects()) common->force = sub->count("--force") > 0;
      application->run = [run, common] { return RunWith(*common, run); };
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
    Print(HelpOf(parsed.empty() ? app : *parsed[0]));
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

extern const Command kGen, kPlan, kValidate, kExplain, kGraph, kDiff, kDigest, kStats, kExport,
    kProgram, kReshard, kVerify, kInspect, kFinalize, kStatus, kSchema, kList, kImport, kCompletion;

std::span<const Command* const> Commands() {
  static constexpr const Command* kCommands[] = {
      &kGen,    &kPlan,   &kValidate, &kExplain, &kGraph,      &kDiff,    &kDigest,
      &kStats,  &kExport, &kProgram,  &kReshard, &kVerify,     &kInspect, &kFinalize,
      &kStatus, &kSchema, &kList,     &kImport,  &kCompletion,
  };
  return kCommands;
}

void PrintUnlessQuiet(std::string_view text) {
  if (LoudnessOfTalk() != Loudness::kQuiet) Print(text);
}

void Print(std::string_view text) {
  if (printed != nullptr) {
    printed->append(text);
    return;
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  // A reader that has gone is no failure: `shardinit … | head`.
  if (errno == EPIPE) throw Interrupted{SIGPIPE};
  throw SystemError("write", "standard output");
}

}  // namespace shardinit
