// Warns if the KV heads do not divide the heads. In grouped-query attention, each KV head serves
// the same number of query heads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "expr/functions.h"
#include "graph/warnings/warnings.h"

namespace shardinit {
namespace {

struct HeadCount {
  std::string_view name;
  int64_t value;
  Span span;
};

// The names of both counts, as variables of specs and as fields of config.json.
constexpr struct {
  std::string_view heads, kv_heads;
} kHeadNames[] = {
    {"heads", "kv_heads"},         {"q_heads", "kv_heads"},
    {"n_heads", "n_kv_heads"},     {"n_head", "n_kv_head"},
    {"num_heads", "num_kv_heads"}, {"num_attention_heads", "num_key_value_heads"},
};

std::optional<HeadCount> CountAt(std::string_view name, const ExprPtr& expr, Span span,
                                 const Building& building) {
  if (expr == nullptr) return {};
  Diagnostics heard_before;
  const auto value = Evaluate(*expr, building.names, heard_before);
  const auto number = value ? ExactInteger(*value) : std::nullopt;
  if (!number || *number < 1) return {};
  return HeadCount{name, *number, span};
}

std::optional<HeadCount> CountOf(std::string_view name, const Building& building) {
  const ModelSpec& spec = building.spec;
  for (const auto& var : spec.vars) {
    if (var.name.value != name) continue;
    if (var.value.is_list) return {};
    return CountAt(name, var.value.items[0], var.name.span, building);
  }
  if (!spec.config) return {};
  for (const auto& member : *spec.config) {
    if (member.name.value != name) continue;
    if (const auto* number = std::get_if<int64_t>(&member.value.value)) {
      if (*number > 0) return HeadCount{name, *number, member.name.span};
    } else if (const auto* expr = std::get_if<ExprPtr>(&member.value.value)) {
      return CountAt(name, *expr, member.name.span, building);
    }
  }
  return {};
}

// Returns whether it reported anything.
bool WarnOfPair(const std::optional<HeadCount>& heads, const std::optional<HeadCount>& kv_heads,
                const WarningContext& context) {
  if (!heads || !kv_heads || heads->value % kv_heads->value == 0) return false;
  std::vector<int64_t> divisors;
  for (int64_t n = 1; n <= std::min<int64_t>(heads->value, 4096); ++n) {
    if (heads->value % n == 0) divisors.push_back(n);
  }
  context.Warn(kv_heads->span,
               fmt::format("`{}` is {}, which `{}`, {}, does not divide", heads->name, heads->value,
                           kv_heads->name, kv_heads->value),
               fmt::format("each KV head must serve the same number of query heads: {} divide {}; "
                           "rename a variable that is not a head count",
                           fmt::join(divisors, ", "), heads->value));
  return true;
}

}  // namespace

void WarnOfHeads(const WarningContext& context) {
  const Building& building = context.building;
  const ExprPtr &heads = building.spec.training.heads, &kv_heads = building.spec.training.kv_heads;
  if (heads != nullptr && kv_heads != nullptr &&
      WarnOfPair(CountAt("heads", heads, SpanOf(*heads), building),
                 CountAt("kv_heads", kv_heads, SpanOf(*kv_heads), building), context)) {
    return;
  }
  for (const auto& names : kHeadNames) {
    if (WarnOfPair(CountOf(names.heads, building), CountOf(names.kv_heads, building), context)) {
      return;
    }
  }
}

}  // namespace shardinit
