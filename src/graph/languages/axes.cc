#include "graph/languages/axes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <variant>
#include <vector>

namespace shardinit {
namespace {

void CollectAxes(const ModuleSpec& module, std::set<std::string>* axes) {
  for (const auto& member : module.members) {
    const auto* tensor = std::get_if<TensorSpec>(&member.value);
    if (tensor == nullptr) {
      CollectAxes(*std::get<std::unique_ptr<ModuleSpec>>(member.value), axes);
    } else if (tensor->axes) {
      for (const auto& name : tensor->axes->value) {
        if (!name.value.empty()) axes->insert(name.value);
      }
    }
  }
}

}  // namespace

std::set<std::string> LogicalAxes(const ModelSpec& spec) {
  std::set<std::string> axes;
  CollectAxes(spec.modules, &axes);
  for (const auto& layout : spec.layouts) CollectAxes(layout.value.modules, &axes);
  return axes;
}

std::string InText(const AxisList& axes) {
  if (axes.value.empty()) return "null";
  std::vector<std::string> names;
  for (const auto& name : axes.value) names.push_back(name.value);
  return names.size() == 1 ? names[0] : fmt::format("[{}]", fmt::join(names, ", "));
}

}  // namespace shardinit
