#include "plan/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/glob.h"
#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/text.h"
#include "graph/build.h"
#include "report/text.h"

namespace shardinit {
namespace {

// Returns the layout for the stored tensors. Throws Error (kUsage) if the spec lacks a required
// layout.
std::string LayoutOf(const ModelSpec& spec, const PlanRequest& request) {
  const std::string& layout = request.layout;
  std::vector<std::string> names;
  for (const auto& known : spec.layouts) names.push_back(known.name.value);
  if (layout.empty() || std::find(names.begin(), names.end(), layout) != names.end()) return layout;
  if (request.layout_is_optional) return "";
  throw Usage(fmt::format("the spec has no layout {}", Quote(layout)),
              names.empty() ? "it declares none; see `layouts` in shardinit-spec(5)"
                            : DidYouMean(layout, names));
}

// Returns the pattern with each part `*` replaced by `**`.
std::string WithAnyDepth(std::string_view pattern) {
  std::string deep;
  for (size_t i = 0; i < pattern.size(); ++i) {
    deep += pattern[i];
    const bool is_part =
        (i == 0 || pattern[i - 1] == '.') && (i + 1 == pattern.size() || pattern[i + 1] == '.');
    if (pattern[i] == '*' && is_part) deep += '*';
  }
  return deep;
}

// Splits a path at its dots.
std::vector<std::string_view> PartsOf(std::string_view path) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

Plan LoadPlan(const PlanRequest& request, Diagnostics& diagnostics) {
  const std::optional<ModelSpec> spec = LoadSpec(request.spec, diagnostics);
  if (!spec) diagnostics.ThrowIfErrors();
  Check(spec.has_value(), "a spec without a mistake is there");
  const std::string layout = diagnostics.HasErrors() ? request.layout : LayoutOf(*spec, request);

  // Resolve every name, expression, shape and rule. After this, no expression is evaluated and no
  // name is looked up.
  InitGraph graph = BuildGraph(*spec,
                               {.layout = layout,
                                .all_layouts = request.all_layouts,
                                .places = request.places,
                                .warns = request.warnings != Warnings::kIgnore,
                                .explanation = request.explanation,
                                .open_source = request.open_source,
                                .cost = request.cost},
                               diagnostics);
  if (request.warnings == Warnings::kDeny) diagnostics.DenyWarnings();
  diagnostics.ThrowIfErrors();
  if (request.replicas) graph.replicas = *request.replicas;

  // Shard every tensor over the mesh. After this, no error in the spec can be found.
  return MakePlan(std::move(graph));
}

std::string HintForNumber(const std::string& path, const std::vector<Tensor>& tensors) {
  const std::vector<std::string_view> wanted = PartsOf(path);
  for (size_t i = 1; i < wanted.size(); ++i) {
    const std::optional<int64_t> number = ParseNumber<int64_t>(wanted[i]);
    if (!number) continue;
    int64_t least = std::numeric_limits<int64_t>::max(), most = -1;
    bool found = false;
    for (const Tensor& tensor : tensors) {
      const std::vector<std::string_view> parts = PartsOf(tensor.path());
      for (size_t k = 1; k < parts.size(); ++k) {
        if (parts[k - 1] != wanted[i - 1]) continue;
        const std::optional<int64_t> other = ParseNumber<int64_t>(parts[k]);
        if (!other) continue;
        found |= *other == *number;
        least = std::min(least, *other);
        most = std::max(most, *other);
      }
    }
    if (found || most < 0) continue;
    return fmt::format("{} has the numbers {} to {}", Quote(wanted[i - 1]), least, most);
  }
  return {};
}

std::string HintForPattern(const std::string& pattern, const std::vector<Tensor>& tensors) {
  if (std::string hint = HintForNumber(pattern, tensors); !hint.empty()) return hint;
  const std::string deep = WithAnyDepth(pattern);
  for (const std::string& wider : {deep, "**." + deep, deep + ".**", "**." + deep + ".**"}) {
    const auto matches = std::count_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
      return PathMatches(wider, tensor.path());
    });
    if (matches > 0)
      return fmt::format(
          "{}; `{}` matches {}",
          wider == deep ? "`*` matches one part of a path" : "it is compared with whole paths",
          wider, Count(matches, "tensor"));
  }
  std::vector<std::string> patterns;
  std::set<std::string> seen;
  for (const Tensor& tensor : tensors) {
    if (std::string path = WithoutNumbers(tensor.path()); seen.insert(path).second)
      patterns.push_back(path);
  }
  const std::string hint = DidYouMean(WithoutNumbers(pattern), patterns);
  return !hint.empty() || patterns.empty() ? hint
                                           : fmt::format("paths look like {}", Quote(patterns[0]));
}

std::vector<const Tensor*> Matching(const std::vector<Tensor>& tensors, const std::string& only) {
  std::vector<const Tensor*> matching;
  for (const Tensor& tensor : tensors) {
    if (only.empty() || PathMatches(only, tensor.path())) matching.push_back(&tensor);
  }
  if (!matching.empty()) return matching;
  throw Usage(fmt::format("no tensor matches `--only {}`", only), HintForPattern(only, tensors));
}

}  // namespace shardinit
