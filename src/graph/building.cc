#include "graph/building.h"

#include <fmt/format.h>

#include "base/suggest.h"

namespace shardinit {

void ReportUnknown(std::string_view kind, const Located<std::string>& name,
                   const std::vector<std::string>& known, Diagnostics& diagnostics) {
  diagnostics.Error(
      name.span, fmt::format("unknown {} `{}`", kind, name.value),
      known.empty() ? fmt::format("the spec declares no {}", kind) : DidYouMean(name.value, known));
}

}  // namespace shardinit
