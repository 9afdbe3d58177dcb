#include "commands/graph_tensors.h"

#include <fmt/format.h>

#include "base/glob.h"
#include "commands/options.h"
#include "graph/outline.h"
#include "report/text.h"

namespace shardinit {

int64_t Shown::CountTies(const Tensors& tensors) const {
  return std::count_if(tensors.begin(), tensors.end(), [&](const Tensor* tensor) {
    return tensor->view() && tensor->view()->root.operation == nullptr &&
           uses[tensor->view()->root.tensor] > 1;
  });
}

Shown Choose(const Plan& plan, const std::string& only) {
  const InitGraph& graph = plan.graph;
  if (!graph.drawn) {
    const Tensors all = Matching(graph.tensors, only);
    return {plan, all, all, {}};
  }
  const auto matches = [&](const Tensor& tensor) {
    return only.empty() || PathMatches(only, tensor.path());
  };
  const std::vector<Tensor>& drawn = *graph.drawn;
  std::vector<bool> matching(drawn.size());
  for (size_t i = 0; i < drawn.size(); ++i) matching[i] = matches(drawn[i]);
  Shown shown{plan, {}, {}, std::vector<int64_t>(drawn.size())};
  std::vector<bool> is_shown = matching;
  for (const Tensor& tensor : graph.tensors) {
    bool wanted = matches(tensor);
    ForEachSource(tensor.view()->root, [&](size_t i) {
      wanted = wanted || matching[i];
      ++shown.uses[i];
    });
    if (!wanted) continue;
    shown.stored.push_back(&tensor);
    ForEachSource(tensor.view()->root, [&](size_t i) { is_shown[i] = true; });
  }
  for (size_t i = 0; i < drawn.size(); ++i) {
    if (is_shown[i]) shown.drawn.push_back(&drawn[i]);
  }
  if (shown.drawn.empty()) Matching(graph.tensors, only);  // throws: no tensor matches
  return shown;
}

std::string HeadingOf(const Shown& shown) {
  const InitGraph& graph = shown.plan.graph;
  int64_t parameters = 0, bytes = 0;
  for (const Tensor* tensor : shown.drawn) parameters += ParametersOf(*tensor);
  for (const Tensor* tensor : shown.stored) bytes += tensor->bytes();
  std::string text = graph.name;
  if (graph.drawn) text += ", layout " + graph.layout;
  text += ": " + Count(std::ssize(shown.drawn), "tensor");
  if (graph.drawn) text += fmt::format(" stored as {}", Grouped(std::ssize(shown.stored)));
  return text + fmt::format(", {}, {}, {}{}", Count(parameters, "parameter"), InBytes(bytes),
                            Count(shown.plan.world_size(), "rank"), MeshText(graph.mesh));
}

TensorText TextOf(const Tensors& tensors, const Shown& shown) {
  const Tensor& tensor = *tensors.front();
  std::string values = tensor.view() ? Describe(OutlineOfViews(tensors)) : DescribeValues(tensors);
  const int64_t ties = shown.CountTies(tensors);
  if (ties > 0)
    values += ties == std::ssize(tensors) ? " (tied)" : fmt::format(" ({} tied)", Grouped(ties));
  return {std::string(InfoOf(tensor.dtype()).name), InShape(tensor.shape_in_numbers()),
          InText(tensor.partition(), shown.plan.graph.mesh), std::move(values)};
}

}  // namespace shardinit
