// Warns about names in the spec's own file that are unused or look misspelt. Included files define
// more than each spec uses.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/suggest.h"
#include "graph/warnings/warnings.h"

namespace shardinit {
namespace {

// Reports the spec's own names that are not in `used`. A name that overrides nothing may be
// misspelt, so the names of included files are suggested.
template <typename T>
void WarnOfUnused(std::string_view kind, const std::vector<Named<T>>& named,
                  const std::set<std::string>& used, const WarningContext& context) {
  std::vector<std::string> included;
  for (const auto& each : named) {
    if (!context.IsOwn(each.name.span)) included.push_back(each.name.value);
  }
  for (const auto& each : named) {
    const auto& [name, span] = each.name;
    if (!context.IsOwn(span) || used.count(name) != 0) continue;
    const std::string closest = Closest(name, included);
    context.Warn(
        span, fmt::format("nothing uses the {} `{}`", kind, name),
        closest.empty()
            ? "remove it, or use it"
            : fmt::format("did you mean `{}` of an included file? Otherwise remove it", closest));
  }
}

// Returns whether one name may be a misspelling of the other: one letter is changed, missing, extra
// or swapped (two in long names). Names that differ only in digits are distinct.
bool MayBeMisspelt(std::string_view a, std::string_view b) {
  constexpr size_t kShort = 4, kLong = 9;
  const size_t length = std::min(a.size(), b.size());
  if (length < kShort) return false;
  const auto without_digits = [](std::string text) {
    std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
    return text;
  };
  if (without_digits(std::string(a)) == without_digits(std::string(b))) return false;
  const size_t most = length >= kLong ? 2 : 1;
  return EditDistance(a, b, most) <= most;
}

}  // namespace

void WarnOfUnusedVariables(const WarningContext& context) {
  WarnOfUnused("variable", context.building.spec.vars, context.uses.variables, context);
}

void WarnOfUnusedInitializers(const WarningContext& context) {
  WarnOfUnused("initializer", context.building.spec.inits, context.uses.initializers, context);
}

void WarnOfLoneAxes(const WarningContext& context) {
  const NameUses& uses = context.uses;
  for (const auto& axis : uses.axes) {
    const std::string& name = axis.first;
    const std::vector<Span>& places = axis.second;
    if (places.size() > 1 || !context.IsOwn(places[0]) || uses.of_sharding.count(name) != 0 ||
        uses.of_dimensions.count(name) != 0 || uses.variables.count(name) != 0) {
      continue;
    }
    const auto meant = std::ranges::find_if(uses.axes, [&](const auto& other) {
      const bool is_known = other.second.size() > 1 || uses.of_sharding.count(other.first) != 0;
      return is_known && MayBeMisspelt(name, other.first);
    });
    if (meant == uses.axes.end()) continue;
    context.Warn(
        places[0],
        fmt::format(
            "the logical axis `{}` is only used here, and has no rule; `{}` is in {} places", name,
            meant->first, meant->second.size()),
        fmt::format("did you mean `{}`? Otherwise give `{}` a rule, `null` if it stays whole",
                    meant->first, name));
  }
}

}  // namespace shardinit
