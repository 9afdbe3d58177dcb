#include "graph/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace shardinit {
namespace {

// `a.b` of `a.b.c`; empty if there is none.
std::string_view GroupOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return path.substr(0, dot == path.npos ? 0 : dot);
}

// `a.b.c` makes the groups `a.b` and `a`; a tensor may not have such a path.
void CheckPaths(const std::vector<Tensor>& all, const std::vector<Span>& places, Diagnostics& diagnostics) {
  std::unordered_map<std::string_view, size_t> tensors;
  tensors.reserve(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto [first, is_new] = tensors.try_emplace(all[i].path, i);
    if (is_new) continue;
    diagnostics.Error(places[i], fmt::format("two tensors have the path `{}`", first->first));
    diagnostics.Note(places[first->second], "the first one is here");
  }
  std::unordered_set<std::string_view> groups;
  std::string_view previous;  // Neighbours mostly share their group.
  for (size_t i = 0; i < all.size(); ++i) {
    std::string_view group = GroupOf(all[i].path);
    if (group == previous) continue;
    previous = group;
    // Groups around a known group are known.
    while (!group.empty() && groups.insert(group).second) {
      if (const auto tensor = tensors.find(group); tensor != tensors.end()) {
        diagnostics.Error(places[tensor->second],
                          fmt::format("`{}` is a tensor and also the group of `{}`", group,
                                      all[i].path),
                          "rename one of them: a checkpoint cannot hold both");
        diagnostics.Note(places[i], "the other one is here");
      }
      group = GroupOf(group);
    }
  }
}

// 64-bit keys of two paths could collide, though nobody will see it happen; an
// explicit `key:` that repeats is the case to find.
void CheckKeys(const std::vector<Tensor>& all, const std::vector<Span>& places, Diagnostics& diagnostics) {
  std::vector<size_t> order;
  for (size_t i = 0; i < all.size(); ++i) {
    if (IsRandom(all[i].distribution)) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(all[a].key, a) < std::pair(all[b].key, b);
  });
  for (size_t k = 1; k < order.size(); ++k) {
    const Tensor &first = all[order[k - 1]], &second = all[order[k]];
    if (first.key != second.key) continue;
    diagnostics.Error(places[order[k]],
                      fmt::format("`{}` and `{}` would be drawn from the same random stream",
                                  first.path, second.path),
                      "give one of them another `key`");
    diagnostics.Note(places[order[k - 1]], "the other one is here");
  }
}

// Every element of the distribution, if they are all one number that is known now.
std::optional<double> TheOnlyValue(const Distribution& distribution) {
  if (const auto* constant = std::get_if<Constant>(&distribution)) return constant->value;
  const auto* expression = std::get_if<Expression>(&distribution);
  if (expression == nullptr) return {};
  for (const Program::Literal& literal : expression->program->literals) {
    if (literal.slot == expression->program->result) return literal.value;
  }
  return {};
}

}  // namespace

Misfit MisfitOf(const Distribution& distribution, DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  if (info.is_float()) {
    const double largest = LargestMagnitude(distribution);
    if (largest <= LargestOf(dtype)) return {};
    return {fmt::format("reach {}, but {} ends at {}", largest, info.name, LargestOf(dtype)),
            "choose a larger dtype or smaller parameters"};
  }
  if (const auto value = TheOnlyValue(distribution)) {
    if (Holds(dtype, *value)) return {};
    return {fmt::format("are {}, but {} holds {}", *value, info.name, WhatItHolds(dtype)),
            "choose another dtype or another value"};
  }
  if (std::holds_alternative<Expression>(distribution)) return {};
  return {fmt::format("are fractions, but {} holds {}", info.name, WhatItHolds(dtype)),
          fmt::format("choose a float dtype, or draw with `{{expr: \"{}\"}}`",
                      dtype == DType::boolean ? "uniform() < 0.5" : "floor(uniform() * 10)")};
}

void ValidateTensors(const std::vector<Tensor>& all, const std::vector<Span>& places,
                     Diagnostics& diagnostics) {
  CheckPaths(all, places, diagnostics);
  if (!diagnostics.HasErrors()) CheckKeys(all, places, diagnostics);
}

}  // namespace shardinit
