#include "graph/warnings/warnings.h"

namespace shardinit {

using WarningCheck = void(const WarningContext& context);

WarningCheck WarnOfUnusedVariables, WarnOfUnusedInitializers, WarnOfLoneAxes, WarnOfIdleMeshAxes,
    WarnOfEmptyRanks, WarnOfDeviations, WarnOfRounding, WarnOfHeads, WarnOfSources;

namespace {

constexpr WarningCheck* kWarningChecks[] = {
    WarnOfUnusedVariables, WarnOfUnusedInitializers, WarnOfLoneAxes, WarnOfIdleMeshAxes,
    WarnOfEmptyRanks,      WarnOfDeviations,         WarnOfRounding, WarnOfHeads,
    WarnOfSources,
};

}  // namespace

void ReportWarnings(const Building& building, const InitGraph& graph, const WrittenTensors& drawn) {
  const WarningContext context = {building, graph, drawn, UsesOf(building.spec)};
  for (WarningCheck* const check : kWarningChecks) check(context);
}

}  // namespace shardinit
