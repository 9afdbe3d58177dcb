#include "graph/sources.h"

#include <fmt/format.h>

#include "base/text.h"
#include "graph/warnings/warnings.h"

namespace shardinit {

// Warns about sources without a digest: the spec does not determine their values.
void WarnOfSources(const WarningContext& context) {
  for (const auto* source : context.building.sources->unpinned()) {
    context.building.diagnostics.Warning(
        source->name.span, fmt::format("source {} has no `digest`", Quote(source->name.value)),
        "give what `shardinit digest` prints as `(model)`, or a file that its `--write` made; "
        "without it, ranks are only compared with one another");
  }
}

}  // namespace shardinit
