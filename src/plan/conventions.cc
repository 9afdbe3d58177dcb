#include "plan/conventions.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "graph/stored/view.h"
#include "init/distribution.h"

namespace shardinit {

void RequireConventions(const Plan& plan) {
  for (const Tensor& stored : plan.graph.tensors) {
    if (!stored.convention().changes() || !stored.view()) continue;
    for (const Piece& piece : stored.view()->pieces) {
      if (piece.source == Piece::kPadding) continue;
      const Tensor& of = plan.graph.logical()[static_cast<size_t>(piece.source)];
      bool is_of_source = false;
      ForEachSource(of.distribution(), [&](const std::string&, const std::string&,
                                           const SourceTensorPtr&) { is_of_source = true; });
      if (!is_of_source) continue;
      throw Usage(fmt::format("{} takes elements of a source, but the trainer of this layout "
                              "multiplies or adds to those of {}",
                              Quote(of.path()), Quote(stored.path())),
                  "leave out the layout, and convert the output to it with `shardinit convert … "
                  "--inexact`");
    }
  }
}

std::vector<std::string> ShiftedTensors(const Plan& plan) {
  std::vector<std::string> paths;
  for (const Tensor& stored : plan.graph.tensors) {
    if (stored.convention().plus != 0) paths.push_back(std::string(stored.path()));
  }
  return paths;
}

}  // namespace shardinit
