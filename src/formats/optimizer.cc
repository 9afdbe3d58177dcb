#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/glob.h"
#include "base/suggest.h"
#include "base/text.h"
#include "formats/format.h"
#include "graph/stored/view.h"

namespace shardinit {

OptimizerState BindOptimizer(OptimizerSpec spec, const InitGraph& graph, Diagnostics& diagnostics) {
  std::vector<const Located<std::string>*> patterns;
  std::vector<std::string> texts;
  std::vector<size_t> groups;  // the group of each pattern
  for (size_t g = 0; g < spec.groups.size(); ++g) {
    for (const Located<std::string>& pattern : spec.groups[g].params) {
      patterns.push_back(&pattern);
      texts.push_back(pattern.value);
      groups.push_back(g);
    }
  }
  OptimizerState state;
  std::vector<bool> used(patterns.size());
  Globs globs(texts, Stars::kRuns);
  for (const Tensor& tensor : graph.tensors) {
    const std::vector<size_t>& matches = globs.Match(tensor.path());
    for (const size_t i : matches) used[i] = true;
    if (!matches.empty() && !IsBuffer(tensor)) state.group_of[&tensor] = groups[matches.front()];
  }
  std::vector<std::string> paths;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    for (size_t t = paths.size(); t < graph.tensors.size(); ++t)
      paths.push_back(std::string(graph.tensors[t].path()));
    diagnostics.Error(patterns[i]->span,
                      fmt::format("no tensor matches {}", Quote(patterns[i]->value)),
                      DidYouMean(patterns[i]->value, paths));
  }
  state.spec = std::move(spec);
  return state;
}

}  // namespace shardinit
