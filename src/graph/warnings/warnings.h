// The last pass, for specs without mistakes: reports what is probably not meant. Each check is a
// row of the table in warnings.cc; its message has the place and the numbers, and its hint says how
// a spec that means it can say so.
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
  // Returns whether the spec's own file has this place, and no file that it includes.
  bool IsOwn(const Span& span) const { return span.source == building.spec.source; }
};

// `drawn` may lack the tensors themselves, which `graph` has.
void ReportWarnings(const Building& building, const InitGraph& graph, const WrittenTensors& drawn);

}  // namespace shardinit
