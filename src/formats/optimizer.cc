#include "formats/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/glob.h"
#include "base/suggest.h"
#include "base/text.h"

namespace shardinit {
namespace {

// The first group that a path is in: paths may be listed one by one, so those are looked up.
class GroupFinder {
 public:
  explicit GroupFinder(const OptimizerSpec& spec) {
    for (size_t g = 0; g < spec.groups.size(); ++g) {
      for (const auto& pattern : spec.groups[g].params) {
        if (pattern.value.find_first_of("*?[") == std::string::npos) {
          named_.try_emplace(pattern.value, g);
        } else {
          patterns_.emplace_back(pattern.value, g);
        }
      }
    }
  }

  std::optional<size_t> Find(const std::string& path) const {
    std::optional<size_t> group;
    if (const auto named = named_.find(path); named != named_.end()) group = named->second;
    for (const auto& [pattern, g] : patterns_) {
      if (group && *group <= g) break;
      if (GlobMatches(pattern, path)) group = g;
    }
    return group;
  }

 private:
  std::unordered_map<std::string_view, size_t> named_;
  std::vector<std::pair<std::string_view, size_t>> patterns_;
};

void CheckPatterns(const OptimizerSpec& spec, const InitGraph& graph, Diagnostics& diagnostics) {
  std::vector<std::string> paths;
  for (const Tensor& tensor : graph.tensors) paths.push_back(tensor.path);
  const std::unordered_set<std::string_view> known(paths.begin(), paths.end());
  for (const ParamGroup& group : spec.groups) {
    for (const auto& pattern : group.params) {
      if (known.contains(pattern.value)) continue;
      const auto matches = [&](const std::string& path) {
        return GlobMatches(pattern.value, path);
      };
      if (std::any_of(paths.begin(), paths.end(), matches)) continue;
      diagnostics.Error(pattern.span, fmt::format("no tensor matches {}", Quote(pattern.value)),
                        DidYouMean(pattern.value, paths));
    }
  }
}

}  // namespace

OptimizerState BindOptimizer(OptimizerSpec spec, const InitGraph& graph, Diagnostics& diagnostics) {
  OptimizerState state{std::move(spec), {}};
  CheckPatterns(state.spec, graph, diagnostics);
  const GroupFinder groups(state.spec);
  for (const Tensor& tensor : graph.tensors) {
    if (const auto group = groups.Find(tensor.path)) state.group_of[&tensor] = *group;
  }
  return state;
}

}  // namespace shardinit
