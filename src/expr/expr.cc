#include "expr/expr.h"

#include <algorithm>

#include "base/table.h"
#include "expr/tree.h"

namespace shardinit {

Span SpanOf(const Expr& expr) { return expr.span; }

const std::string& TextOf(const Expr& expr) { return expr.text; }

std::vector<std::string> NamesIn(const Expr& expr) {
  std::vector<std::string> names;
  for (const Step& step : expr.steps) {
    const bool has_name =
        step.op == Step::Op::kName || step.op == Step::Op::kIndex || step.op == Step::Op::kLength;
    if (!has_name) continue;
    std::string name(expr.NameOf(step));
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

bool IsReservedName(std::string_view name) {
  constexpr std::string_view kReserved[] = {"and", "or", "not", "true", "false"};
  return Contains(kReserved, name);
}

bool IsName(const Expr& expr) {
  return expr.steps.size() == 1 && expr.steps[0].op == Step::Op::kName &&
         expr.steps[0].length == expr.text.size();
}

}  // namespace shardinit
