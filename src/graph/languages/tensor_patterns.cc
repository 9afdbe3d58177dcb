#include "graph/languages/tensor_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/glob.h"
#include "base/suggest.h"
#include "base/text.h"
#include "graph/drawn/expand.h"
#include "graph/stored/store.h"
#include "report/text.h"

namespace shardinit {
std::vector<DeclaredPath> DeclaredPaths(const Building& building, const Mesh& mesh) {
  std::vector<DeclaredPath> paths;
  const auto collect = [&](const ModuleSpec& modules, bool is_drawn) {
    Diagnostics heard_elsewhere;
    Building apart(building, heard_elsewhere, nullptr);
    if (!is_drawn) DefineMeshSizes(mesh, &apart.names);
    std::set<std::string> seen;
    try {
      Expand(modules, 0, apart, [&](const Leaf& leaf) {
        if (!seen.insert(WithoutNumbers(leaf.path)).second) return;
        paths.push_back({leaf.path, leaf.spec.shape.size(), is_drawn});
      });
    } catch (const InvalidSpec&) {  // too many errors
    }
  };
  collect(building.spec.modules, true);
  for (const auto& layout : building.spec.layouts) collect(layout.value.modules, false);
  return paths;
}

TensorPatterns::TensorPatterns(std::vector<Located<std::string>> patterns)
    : patterns_(std::move(patterns)),
      used_(patterns_.size()),
      globs_(ValuesOf(patterns_), Stars::kParts) {}

const std::vector<size_t>& TensorPatterns::Match(std::string_view path) {
  const std::vector<size_t>& matches = globs_.Match(path);
  for (const size_t i : matches) used_[i] = true;
  return matches;
}

bool TensorPatterns::AllUsed() const {
  return std::ranges::all_of(used_, [](bool used) { return used; });
}

std::vector<size_t> TensorPatterns::Unused(const std::vector<DeclaredPath>& declared) {
  for (const DeclaredPath& of : declared) Match(of.path);
  std::vector<size_t> unused;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    if (!used_[i]) unused.push_back(i);
  }
  return unused;
}

void TensorPatterns::CheckUse(Building& building, const Mesh& mesh) {
  if (AllUsed()) return;
  const std::vector<DeclaredPath> declared = DeclaredPaths(building, mesh);
  for (const size_t i : Unused(declared)) {
    building.diagnostics.Error(patterns_[i].span,
                               fmt::format("no tensor matches {}", Quote(patterns_[i].value)),
                               NearestPath(patterns_[i].value, declared));
  }
}

namespace {

// Returns the last parts of a path, the same number as `like` has.
std::string_view Ending(std::string_view path, std::string_view like) {
  size_t start = path.size() + 1;
  for (auto dots = std::ranges::count(like, '.'); dots >= 0 && start > 0; --dots) {
    start = start < 2 ? 0 : path.rfind('.', start - 2) + 1;
  }
  return path.substr(start);
}

}  // namespace

std::string NearestPath(std::string_view pattern, const std::vector<DeclaredPath>& declared) {
  constexpr size_t kMostListed = 8;
  std::vector<std::string> paths;
  for (const DeclaredPath& of : declared) {
    if (of.is_drawn) paths.push_back(WithoutNumbers(of.path));
  }
  // If the pattern matches a module, the user probably meant the module's tensors.
  for (const DeclaredPath& of : declared) {
    for (size_t dot = of.path.find('.'); dot != of.path.npos; dot = of.path.find('.', dot + 1)) {
      if (!PathMatches(pattern, std::string_view(of.path).substr(0, dot))) continue;
      const std::string below = WithoutNumbers(std::string_view(of.path).substr(dot));
      return fmt::format("did you mean {}?", Quote(std::string(pattern) + below));
    }
  }
  // If the pattern has `**`, compare the parts after it with the endings of paths.
  if (const size_t stars = pattern.rfind("**."); stars != pattern.npos) {
    const std::string_view behind = pattern.substr(stars + 3);
    std::vector<std::string> endings;
    for (const std::string& path : paths) endings.emplace_back(Ending(path, behind));
    const std::string closest = Closest(WithoutNumbers(behind), endings);
    if (!closest.empty()) {
      return fmt::format("did you mean {}?",
                         Quote(fmt::format("{}{}", pattern.substr(0, stars + 3), closest)));
    }
  }
  const std::string closest = Closest(WithoutNumbers(pattern), paths);
  if (!closest.empty() || paths.size() <= kMostListed)
    return DidYouMean(WithoutNumbers(pattern), paths);
  return fmt::format("paths look like {}", Quote(paths[0]));
}

}  // namespace shardinit
