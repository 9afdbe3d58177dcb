#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/colour.h"
#include "base/file.h"
#include "base/glob.h"
#include "base/suggest.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/options.h"
#include "commands/tensor_facts.h"
#include "report/text.h"
#include "spec/shipped.h"

namespace shardinit {
namespace {

struct ExplainOptions {
  explicit ExplainOptions(CLI::App& app) {
    spec.AddAllTo(app);
    app.add_option("PATH", path, "Path of a tensor, or a pattern such as '**.q_proj.weight'")
        ->required();
    AddRank(app, &rank, "Show this rank's boxes; default: the lowest rank that has boxes");
    AddJson(app, &json);
  }

  SpecOptions spec;
  std::string path;
  int64_t rank = -1;  // -1: the first rank with the largest part
  bool json = false;
};

// Returns the tensors that a path can name.
const std::vector<Tensor>& Candidates(const Plan& plan, bool stored) {
  return stored ? plan.graph.tensors : plan.graph.logical();
}

[[noreturn]] void ReportNoTensor(const std::string& path, const Plan& plan,
                                 const Explanation& why) {
  const auto& left_out = why.left_out || !why.stored ? why.left_out : why.stored->left_out;
  if (left_out) {
    throw Usage(
        fmt::format("`{}` is left out: `when: {}` is 0", left_out->path, left_out->when.text),
        fmt::format("the condition is at {}", PlaceOf(left_out->when.span)));
  }
  if (!why.places.empty()) {
    const auto& [layout, stored, view, elements, span] = why.places.front();
    throw Usage(
        fmt::format("the model has no tensor `{}`, but its layout `{}` has one", path, layout),
        fmt::format("use `--layout {}` to explain `{}`", layout, stored));
  }
  std::vector<std::string> paths;
  std::unordered_set<std::string_view> known;  // A stored tensor may have the path of a drawn one.
  std::string hint;
  int64_t members = 0;
  for (const bool stored : {true, false}) {
    if (stored && !plan.graph.drawn) continue;
    for (const Tensor& tensor : Candidates(plan, stored)) {
      if (!known.insert(tensor.path()).second) continue;
      paths.push_back(std::string(tensor.path()));
      members += tensor.path().starts_with(path + ".");
      if (hint.empty() && tensor.path().ends_with("." + path)) {
        hint = fmt::format("did you mean `{}`?", tensor.path());
      }
    }
    if (members > 0) break;
  }
  if (members > 0) {
    throw Usage(
        fmt::format("`{}` is not a tensor, but the module of {}", path, Count(members, "tensor")),
        fmt::format("`{}.**` explains the first of them", path));
  }
  if (hint.empty()) hint = HintForNumber(path, Candidates(plan, false));
  if (hint.empty()) {
    hint = path.find('*') == path.npos ? DidYouMean(path, paths)
                                       : HintForPattern(path, Candidates(plan, false));
  }
  throw Usage(fmt::format("no tensor has the path `{}`", path),
              hint.empty() ? "`shardinit graph SPEC` shows the paths" : hint);
}

// Returns whether a word names a file or a shipped spec.
bool IsSpec(const std::string& word) {
  const std::string path = PathOfSpec({}, word);
  return IsShipped(path) || Exists(path);
}

// Lists the tensors that match a pattern. Tensors that differ only in numbers share a line.
std::string ListOf(const std::string& pattern, const std::vector<Tensor>& tensors) {
  constexpr size_t kMostListed = 16;
  std::vector<std::pair<std::string, int64_t>> groups;
  for (const Tensor& tensor : tensors) {
    if (!PathMatches(pattern, tensor.path())) continue;
    const std::string path = WithoutNumbers(tensor.path());
    const auto group = std::ranges::find(groups, path, &std::pair<std::string, int64_t>::first);
    if (group == groups.end()) {
      groups.emplace_back(path, 1);
    } else {
      ++group->second;
    }
  }
  if (groups.size() < 2) return {};
  std::string list;
  for (size_t i = 0; i < std::min(groups.size(), kMostListed); ++i) {
    list += fmt::format("  {} ({})\n", groups[i].first, Count(groups[i].second, "tensor"));
  }
  if (groups.size() > kMostListed)
    list += fmt::format("  and {} more\n", groups.size() - kMostListed);
  return list;
}

void RunExplain(const ExplainOptions& options) {
  const std::string& spec = options.spec.request.path;
  if (spec != "-" && !IsSpec(spec) && IsSpec(options.path)) {
    throw Usage(fmt::format("{} is not a spec, but {} is", Quote(spec), Quote(options.path)),
                fmt::format("name the spec first: `shardinit explain {} {}`", Escape(options.path),
                            Escape(spec)));
  }
  Diagnostics diagnostics;  // owns the places
  Explanation why;
  why.pattern = options.path;
  const Plan plan = options.spec.Load(diagnostics, {.explanation = &why});
  CheckRank(options.rank, plan);
  // With a layout, stored tensors come first.
  const bool stored = why.stored && why.stored->tensor;
  const Explanation& found = stored ? *why.stored : why;
  if (!found.tensor) ReportNoTensor(options.path, plan, why);
  const std::vector<Tensor>& tensors = Candidates(plan, stored);
  const Tensor& tensor = tensors[*found.tensor];
  const int64_t rank = options.rank >= 0 ? options.rank : plan.ShardingOf(tensor).LargestRank();
  const auto matches = std::count_if(tensors.begin(), tensors.end(), [&](const Tensor& t) {
    return PathMatches(options.path, t.path());
  });
  const Facts facts = FactsOf({plan, found, tensor, rank}, matches);
  if (options.json) {
    Print(FactsInJson(facts));
  } else {
    Print(fmt::format(
        "{}{}{}\n{}\n{}", Paint(Role::kStrong, tensor.path()),
        tensor.view() ? fmt::format(", stored in layout {}", plan.graph.layout) : "",
        matches == 1 ? "" : fmt::format(" (the first of {} that match)", Grouped(matches)),
        ListOf(options.path, tensors), FactsInText(facts)));
  }
}

}  // namespace

extern const Command kExplain = {"explain", "Show where a tensor's values and sharding come from",
                                 Configure<RunExplain>};

}  // namespace shardinit
