// Checks the values of this build, or of another program, against known answers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/embedded.h"
#include "base/file.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/options.h"
#include "generate/known_answers.h"
#include "kernels/kernels.h"
#include "report/text.h"
#include "tensor/dtype.h"

namespace shardinit {
namespace {

struct ConformanceOptions {
  explicit ConformanceOptions(CLI::App& app) {
    CLI::Option* const of_file =
        app.add_option("FILE", file,
                       "Answers of another program, in the same form, or `-` for standard input")
            ->check(NotEmpty);
    app.add_flag("--vectors", vectors, "Print the known answers")->excludes(of_file);
  }

  std::string file;
  bool vectors = false;
};

// Counts answers and elements, and names each answer that differs.
struct ConformanceResult {
  int64_t answers = 0, elements = 0, wrong = 0;

  // Compares `given` with `right`; `where` ends the printed line.
  void Compare(const KnownAnswer& answer, const std::vector<uint64_t>& given,
               const std::vector<uint64_t>& right, const std::string& where) {
    int64_t first = -1, count = 0;
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i] == right[i]) continue;
      if (count++ == 0) first = static_cast<int64_t>(i);
    }
    if (count == 0) return;
    ++wrong;
    const int digits = InfoOf(answer.tensor.dtype()).bytes * 2;
    Report(fmt::format("{}: element {} of `bits` is {:0{}x} instead of {:0{}x}; wrong elements: {} "
                       "of {}{}\n",
                       Quote(answer.name), first, given[static_cast<size_t>(first)], digits,
                       right[static_cast<size_t>(first)], digits, count, given.size(), where),
           false);
  }
};

ExitCode RunConformance(const ConformanceOptions& options) {
  const std::string_view known = AnswerFiles().front().text;
  if (options.vectors) {
    Print(known);
    return ExitCode::kOk;
  }
  const bool is_own = options.file.empty();
  const std::string text = is_own ? std::string(known) : ReadFile(options.file);
  const std::vector<std::string> targets =
      is_own ? kernels::Targets() : std::vector{kernels::ActiveTarget()};
  const std::string active = kernels::ActiveTarget();
  ConformanceResult result;
  ReadKnownAnswers(
      text, is_own ? "the known answers" : options.file, [&](const KnownAnswer& answer) {
        ++result.answers;
        result.elements += std::ssize(answer.bits);
        for (const std::string& target : targets) {
          kernels::ForceTarget(target);
          const std::vector<uint64_t> made = MakeBits(answer);
          is_own ? result.Compare(answer, made, answer.bits, fmt::format(" with {}", target))
                 : result.Compare(answer, answer.bits, made, "");
        }
      });
  kernels::ForceTarget(active);
  if (result.wrong == 0) {
    PrintUnlessQuiet(fmt::format("{}, {}: all as expected with {}\n",
                                 Count(result.answers, "vector"), Count(result.elements, "element"),
                                 fmt::join(targets, ", ")));
    return ExitCode::kOk;
  }
  Report(is_own
             ? "shardinit: this build, or this processor, generates wrong values\n"
               "  hint: do not generate models with it; report the output above\n"
             : fmt::format("shardinit: {} of {} in `{}` {} other bits than {} should\n"
                           "  hint: shardinit-values(7) defines each value\n",
                           result.wrong, Count(result.answers, "vector"), Escape(options.file),
                           result.wrong == 1 ? "has" : "have", result.wrong == 1 ? "it" : "they"),
         false);
  return ExitCode::kDifferent;
}

}  // namespace

extern const Command kConformance = {"conformance",
                                     "Test the values of this build or of another program",
                                     Configure<RunConformance>};

}  // namespace shardinit
