#include "plan/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/glob.h"
#include "base/suggest.h"
#include "base/text.h"
#include "graph/build.h"
#include "report/text.h"

namespace shardinit {
namespace {

void CheckLayout(const ModelSpec& spec, const std::string& layout) {
  std::vector<std::string> names;
  for (const auto& known : spec.layouts) names.push_back(known.name.value);
  if (layout.empty() || std::find(names.begin(), names.end(), layout) != names.end()) return;
  throw Error(ExitCode::kUsage, fmt::format("the spec has no layout {}", Quote(layout)),
              names.empty() ? "it declares none; see `layouts` in shardinit-spec(5)"
                            : DidYouMean(layout, names));
}

// Returns the paths of `tensors` as patterns, one for all that are equal except for numbers; or, if
// `only` matches parts of paths, the pattern that matches whole paths around it.
std::string HintAt(const std::string& only, const std::vector<Tensor>& tensors) {
  const std::string wider =
      fmt::format("{}{}{}", only.starts_with('*') ? "" : "*", only, only.ends_with('*') ? "" : "*");
  const auto matches = std::count_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
    return GlobMatches(wider, tensor.path);
  });
  if (matches > 0)
    return fmt::format("it is compared with whole paths; `{}` matches {}", wider,
                       Count(matches, "tensor"));
  std::vector<std::string> patterns;
  std::set<std::string> seen;
  for (const Tensor& tensor : tensors) {
    if (std::string pattern = WithoutNumbers(tensor.path); seen.insert(pattern).second)
      patterns.push_back(pattern);
  }
  const std::string hint = DidYouMean(WithoutNumbers(only), patterns);
  return !hint.empty() || patterns.empty()
             ? hint
             : fmt::format("paths are such as {}", Quote(patterns[0]));
}

}  // namespace

Plan LoadPlan(const PlanRequest& request, Diagnostics& diagnostics) {
  const std::optional<ModelSpec> spec = LoadSpec(request.spec, diagnostics);
  if (!spec) diagnostics.ThrowIfErrors();
  Check(spec.has_value(), "a spec without a mistake is there");
  if (!diagnostics.HasErrors()) CheckLayout(*spec, request.layout);

  // Resolve every name, expression, shape and rule. Beyond this point no expression is evaluated
  // and no name is looked up.
  InitGraph graph = BuildGraph(*spec,
                               {.layout = request.layout,
                                .all_layouts = request.all_layouts,
                                .places = request.places,
                                .explanation = request.explanation,
                                .cost = request.cost},
                               diagnostics);
  diagnostics.ThrowIfErrors();
  if (request.replicas) graph.replicas = *request.replicas;

  // Shard every tensor over the mesh. Beyond this point the spec can no longer be found wrong.
  return MakePlan(std::move(graph));
}

std::vector<const Tensor*> Matching(const std::vector<Tensor>& tensors, const std::string& only) {
  std::vector<const Tensor*> matching;
  for (const Tensor& tensor : tensors) {
    if (only.empty() || GlobMatches(only, tensor.path)) matching.push_back(&tensor);
  }
  if (!matching.empty()) return matching;
  throw Error(ExitCode::kUsage, fmt::format("no tensor matches `--only {}`", only),
              HintAt(only, tensors));
}

}  // namespace shardinit
