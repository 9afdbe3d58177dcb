#include "graph/assert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "expr/expr.h"
#include "expr/functions.h"

namespace shardinit {

void CheckAssertions(const Building& building) {
  for (const AssertSpec& assertion : building.spec.assertions) {
    const Expr& that = *assertion.that;
    const std::optional<Value> value = Evaluate(that, building.names, building.diagnostics);
    if (!value || ToDouble(*value) != 0) continue;
    std::vector<std::string> values;
    for (const std::string& name : NamesIn(that)) {
      Diagnostics heard_before;
      if (const auto number = building.names.Find(name, heard_before)) {
        values.push_back(fmt::format("`{}` is {}", name, FormatValue(*number)));
      }
    }
    building.diagnostics.Error(
        SpanOf(that),
        fmt::format("{}{}{}",
                    assertion.message ? assertion.message->value
                                      : fmt::format("{} does not hold", Quote(TextOf(that))),
                    values.empty() ? "" : ": ", fmt::join(values, " and ")));
  }
}

}  // namespace shardinit
