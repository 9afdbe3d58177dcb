#include "graph/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace shardinit {
namespace {

// `a.b.c` makes the groups `a.b` and `a`; a tensor may not have such a path.
void CheckPaths(const InitGraph& graph, const std::vector<Span>& places, Diagnostics& diagnostics) {
  std::unordered_map<std::string_view, size_t> tensors, groups;
  tensors.reserve(graph.tensors.size());
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const std::string_view path = graph.tensors[i].path;
    const auto [first, is_new] = tensors.try_emplace(path, i);
    if (!is_new) {
      diagnostics.Error(places[i], fmt::format("two tensors have the path `{}`", path));
      diagnostics.Note(places[first->second], "the first one is here");
    }
    for (size_t dot = path.rfind('.'); dot != path.npos; dot = path.rfind('.', dot - 1)) {
      // Groups around a known group are known.
      if (!groups.try_emplace(path.substr(0, dot), i).second || dot == 0) break;
    }
  }
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const auto group = groups.find(graph.tensors[i].path);
    if (group == groups.end()) continue;
    diagnostics.Error(places[i], fmt::format("`{}` is a tensor and also the group of `{}`",
                                             group->first, graph.tensors[group->second].path),
                      "rename one of them: a checkpoint cannot hold both");
    diagnostics.Note(places[group->second], "the other one is here");
  }
}

// 64-bit keys of two paths could collide, though nobody will see it happen; an
// explicit `key:` that repeats is the case to find.
void CheckKeys(const InitGraph& graph, const std::vector<Span>& places, Diagnostics& diagnostics) {
  std::vector<size_t> order;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if (IsRandom(graph.tensors[i].distribution)) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(graph.tensors[a].key, a) < std::pair(graph.tensors[b].key, b);
  });
  for (size_t k = 1; k < order.size(); ++k) {
    const Tensor &first = graph.tensors[order[k - 1]], &second = graph.tensors[order[k]];
    if (first.key != second.key) continue;
    diagnostics.Error(places[order[k]],
                      fmt::format("`{}` and `{}` would be drawn from the same random stream",
                                  first.path, second.path),
                      "give one of them another `key`");
    diagnostics.Note(places[order[k - 1]], "the other one is here");
  }
}

}  // namespace

void ValidateGraph(const InitGraph& graph, const std::vector<Span>& places,
                   Diagnostics& diagnostics) {
  CheckPaths(graph, places, diagnostics);
  if (!diagnostics.HasErrors()) CheckKeys(graph, places, diagnostics);
}

}  // namespace shardinit
