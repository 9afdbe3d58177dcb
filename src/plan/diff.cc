#include "plan/diff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <unordered_map>

#include "base/glob.h"
#include "base/overloaded.h"
#include "graph/engines/engines.h"
#include "graph/stored/view.h"

namespace shardinit {
namespace {

std::string KeyInText(const Tensor& tensor) {
  return std::visit(Overloaded{
                        [&](const DrawPath&) { return std::string(DrawPathOf(tensor)); },
                        [](const KeyWords& words) { return fmt::format("{:016x}", words.key); },
                        [](const StreamPlace& place) {
                          return fmt::format("position {}{}", place.position,
                                             place.spare == kNoSpare
                                                 ? ""
                                                 : fmt::format(", spare {}", place.spare));
                        },
                    },
                    tensor.key());
}

void AddIf(bool differs, std::string_view what, std::string before, std::string after,
           std::vector<Change>* changes) {
  if (differs) changes->push_back({std::string(what), std::move(before), std::move(after)});
}

void AddValues(const Tensor& a, const Tensor& b, const InitGraph& before, const InitGraph& after,
               std::vector<Change>* changes) {
  std::string values_a = InText(a), values_b = InText(b);
  const bool random = IsRandom(a.distribution()) && IsRandom(b.distribution());
  const bool stream = random && a.stream() != b.stream();
  if (stream) {
    // Adds the parts of the stream's origin that differ.
    const auto add = [&](std::string_view what, const auto& was, const auto& is) {
      if (was == is) return;
      values_a += fmt::format(", {} {}", what, was);
      values_b += fmt::format(", {} {}", what, is);
    };
    add("engine", before.engine, after.engine);
    add("seed", before.seed, after.seed);
    add("key", KeyInText(a), KeyInText(b));
  }
  AddIf(stream || NamedDistribution(a) != NamedDistribution(b), "values", values_a, values_b,
        changes);
}

void AddFormChanges(const Tensor& a, const Tensor& b, std::vector<Change>* changes) {
  AddIf(a.dtype() != b.dtype(), "dtype", std::string(InfoOf(a.dtype()).name),
        std::string(InfoOf(b.dtype()).name), changes);
  const auto kind = [](const Tensor& tensor) { return IsBuffer(tensor) ? "buffer" : "parameter"; };
  AddIf(IsBuffer(a) != IsBuffer(b), "kind", kind(a), kind(b), changes);
  AddIf(a.shape() != b.shape(), "shape", fmt::format("[{}]", fmt::join(a.shape(), ", ")),
        fmt::format("[{}]", fmt::join(b.shape(), ", ")), changes);
}

void AddSharding(const Tensor& a, const Tensor& b, const Plan& before, const Plan& after,
                 std::vector<Change>* changes) {
  const std::string mesh_a = InText(before.graph.mesh), mesh_b = InText(after.graph.mesh);
  const auto text = [&](const Tensor& tensor, const Mesh& mesh, const std::string& mesh_text) {
    return InText(tensor.partition(), mesh) + (mesh_a == mesh_b ? "" : " of " + mesh_text);
  };
  AddIf(!(before.ShardingOf(a) == after.ShardingOf(b)), "sharding",
        text(a, before.graph.mesh, mesh_a), text(b, after.graph.mesh, mesh_b), changes);
}

void AddView(const Tensor& a, const Tensor& b, std::vector<Change>* changes) {
  const bool equal = a.view() && b.view() ? AreEqual(*a.view(), *b.view()) : a.view() == b.view();
  const auto text = [](const Tensor& tensor) {
    return tensor.view() ? Describe(*tensor.view()) : "as it is drawn";
  };
  AddIf(!equal, "view", text(a), text(b), changes);
}

// Calls `changes_of(a, b)` for each path that both plans have. Returns the number of equal pairs.
template <typename F>
int64_t CompareTensors(const std::vector<Tensor>& before, const std::vector<Tensor>& after,
                       std::string_view only, F changes_of,
                       std::vector<TensorDifference>* differences) {
  int64_t equal = 0;
  std::unordered_map<std::string_view, const Tensor*> left;
  const auto matches = [&](const Tensor& tensor) {
    return only.empty() || PathMatches(only, tensor.path());
  };
  for (const Tensor& tensor : before) {
    if (matches(tensor)) left.emplace(tensor.path(), &tensor);
  }
  for (const Tensor& tensor : after) {
    if (!matches(tensor)) continue;
    const auto it = left.find(tensor.path());
    if (it == left.end()) {
      differences->push_back({std::string(tensor.path()), false, true, {}});
      continue;
    }
    std::vector<Change> changes = changes_of(*it->second, tensor);
    left.erase(it);
    if (changes.empty()) {
      ++equal;
    } else {
      differences->push_back({std::string(tensor.path()), true, true, std::move(changes)});
    }
  }
  for (const Tensor& tensor : before) {
    if (left.count(tensor.path()) != 0)
      differences->push_back({std::string(tensor.path()), true, false, {}});
  }
  return equal;
}

}  // namespace

PlanDifference Compare(const Plan& before, const Plan& after, std::string_view only) {
  PlanDifference difference;
  const InitGraph &a = before.graph, &b = after.graph;
  AddIf(a.name != b.name, "name", a.name, b.name, &difference.changes);
  AddIf(a.seed != b.seed, "seed", fmt::to_string(a.seed), fmt::to_string(b.seed),
        &difference.changes);
  AddIf(a.engine != b.engine, "engine", a.engine, b.engine, &difference.changes);
  AddIf(InText(a.mesh) != InText(b.mesh), "mesh", InText(a.mesh), InText(b.mesh),
        &difference.changes);
  AddIf(a.replicas != b.replicas, "replicas", std::string(NameOf(a.replicas)),
        std::string(NameOf(b.replicas)), &difference.changes);
  AddIf(a.layout != b.layout, "layout", a.layout.empty() ? "none" : a.layout,
        b.layout.empty() ? "none" : b.layout, &difference.changes);

  const bool apart = a.drawn || b.drawn;
  difference.equal = CompareTensors(
      a.logical(), b.logical(), only,
      [&](const Tensor& was, const Tensor& is) {
        std::vector<Change> changes;
        AddValues(was, is, a, b, &changes);
        AddFormChanges(was, is, &changes);
        if (!apart) AddSharding(was, is, before, after, &changes);
        return changes;
      },
      &difference.tensors);
  if (!apart) return difference;
  CompareTensors(
      a.tensors, b.tensors, only,
      [&](const Tensor& was, const Tensor& is) {
        std::vector<Change> changes;
        AddView(was, is, &changes);
        AddFormChanges(was, is, &changes);
        AddSharding(was, is, before, after, &changes);
        return changes;
      },
      &difference.stored);
  return difference;
}

}  // namespace shardinit
