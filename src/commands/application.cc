#include <fmt/format.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/colour.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/result_file.h"
#include "base/sha256.h"
#include "base/talk.h"
#include "commands/command.h"
#include "commands/complete.h"
#include "commands/options.h"
#include "commands/usage.h"
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

std::string* printed = nullptr;  // if not null, receives the printed text

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
  out.Member("sha256_instructions", Sha256UsesInstructions());
  out.Member("compiler", kCompiler);
  out.Member("hdf5", fmt::format("{}.{}.{}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE));
  out.EndObject();
  Print(out.Finish());
}

// Reports the cost of the process so far.
void TalkOfCost(const Stopwatch& time) {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  Talk(fmt::format("shardinit: {:.3f} s, {:.3f} s of processors, at most {} of memory, {}\n",
                   time.seconds(), SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime),
                   InBytes(int64_t{usage.ru_maxrss} * 1024), kernels::ActiveTarget()));
}

// Captures the printed text during its lifetime.
class Printed {
 public:
  Printed() { printed = &text_; }
  ~Printed() { printed = nullptr; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

constexpr std::string_view kColourModes[] = {"auto", "always", "never"};

// Applies --color before parsing, so that command-line errors are coloured too.
void ChooseColoursBy(const std::vector<std::string>& words) {
  ColourMode mode = ColourMode::kAuto;
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    for (size_t m = 0; m < std::size(kColourModes); ++m) {
      const std::string_view name = kColourModes[m];
      const bool apart = words[i] == "--color" && i + 1 < words.size() && words[i + 1] == name;
      if (apart || words[i] == fmt::format("--color={}", name)) mode = static_cast<ColourMode>(m);
    }
  }
  ChooseColours(mode);
}

// Runs a command. Checks a file that replaces standard output before the work, and again after the
// command has read its inputs.
ExitCode RunWith(const CommonOptions& common, const std::function<ExitCode()>& run) {
  const Stopwatch time;
  if (common.quiet && common.verbose) {
    throw Usage("`--quiet` and `--verbose` exclude each other", "give one of them");
  }
  if (common.quiet) SetLoudness(Loudness::kQuiet);
  if (common.verbose) SetLoudness(Loudness::kVerbose);
  ChoiceOf("--color", common.color, {std::begin(kColourModes), std::end(kColourModes)});
  ExitCode code;
  if (common.redirects()) {
    NeverColour(Channel::kOutput);
    const ResultFile file({"-o", "file", {}}, common.output, common.force);
    const Printed taken;
    code = run();
    file.Write(taken.text());
  } else {
    code = run();
  }
  if (common.verbose) TalkOfCost(time);
  return code;
}

}  // namespace

std::string HelpOf(const CLI::App& app) {
  std::string text = app.get_parent() == nullptr ? app.help() : app.help("shardinit");
  for (size_t at = 0; (at = text.find("\n\n\n", at)) != text.npos;) text.erase(at, 1);
  return text;
}

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
    if (command->pass_on == nullptr) common->AddTo(*sub);
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
  if (!words.empty() && words[0] == "__complete") {
    Complete({words.begin() + 1, words.end()});
    return ExitCode::kOk;
  }
  ChooseColoursBy(words);
  if (words.size() <= 2 && (given("--version") || given("-V"))) {
    PrintVersion(given("--json"));
    return ExitCode::kOk;
  }
  for (const Command* command : Commands()) {
    if (command->pass_on != nullptr && !words.empty() && words[0] == command->name) {
      command->pass_on(words);
    }
  }
  const auto application = MakeApplication();
  CLI::App& app = application->app;
  RefuseMisplaced(app, words);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto parsed = app.get_subcommands();
    Print(HelpOf(parsed.empty() ? app : *parsed[0]));
    return ExitCode::kOk;
  } catch (const CLI::ParseError& e) {
    ExplainUsage(app, e, words);
  }
  // Otherwise the URL of another kind of store would name a local folder such as `s3:`.
  for (const CLI::Option* option : app.get_subcommands()[0]->get_options()) {
    for (const std::string& value : option->results()) {
      RequireKnownPlace(*option, value);
    }
  }
  return application->run();
}

extern const Command kGen, kPlan, kValidate, kExplain, kGraph, kDiff, kDigest, kStats, kExport,
    kProgram, kReshard, kConvert, kVerify, kInspect, kFinalize, kStatus, kJobs, kSchema, kList,
    kHelp, kNew, kImport, kCapture, kConformance, kCompletion;

std::span<const Command* const> Commands() {
  static constexpr const Command* kCommands[] = {
      &kGen,      &kPlan,    &kValidate,    &kExplain,    &kGraph,   &kDiff,   &kDigest,
      &kStats,    &kExport,  &kProgram,     &kReshard,    &kConvert, &kVerify, &kInspect,
      &kFinalize, &kStatus,  &kJobs,        &kSchema,     &kList,    &kHelp,   &kNew,
      &kImport,   &kCapture, &kConformance, &kCompletion,
  };
  return kCommands;
}

void PrintUnlessQuiet(std::string_view text) {
  if (LoudnessOfTalk() != Loudness::kQuiet) Print(text);
}

void Report(std::string_view finding, bool is_json) {
  Talk(finding);
  if (printed != nullptr && !is_json) printed->append(WithoutColour(finding));
}

void Print(std::string_view text) { PrintExactly(MakeHarmless(text)); }

void PrintExactly(std::string_view text) {
  if (printed != nullptr) {
    printed->append(text);
    return;
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  // A reader that closed the pipe is not an error: `shardinit … | head`.
  if (errno == EPIPE) throw Interrupted{SIGPIPE};
  throw SystemError("write", "standard output");
}

}  // namespace shardinit
