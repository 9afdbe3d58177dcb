// The last pass: warns about valid specs that are probably not intended. Each check is a row of the
// table in warnings.cc. Its message has the place and the numbers; its hint explains how to state
// that the spec is intended.
#pragma once

#include "graph/building.h"
#include "graph/warnings/uses.h"

namespace shardinit {

struct WarningContext {
  const Building& building;
  const InitGraph& graph;
  const WrittenTensors& drawn;  // specs, places and fans of graph.logical()
  const NameUses uses;

  void Warn(Span span, std::string message, std::string hint) const {
    building.diagnostics.Warning(span, std::move(message), std::move(hint));
  }
  // Returns whether the place is in the spec's own file, not in an included file.
  bool IsOwn(const Span& span) const { return span.source == building.spec.source; }
};

// `drawn` may lack the tensors themselves, which are in `graph`.
void ReportWarnings(const Building& building, const InitGraph& graph, const WrittenTensors& drawn);

}  // namespace shardinit
