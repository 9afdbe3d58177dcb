#include "init/formula.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/table.h"

namespace shardinit {
namespace {

using Bindings = std::initializer_list<Formula::Name>;

// Returns `text` with each name replaced by the result of `of` for it.
template <typename F>
std::string Substitute(std::string_view text, Bindings names, F of) {
  constexpr std::string_view kWord =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  std::string out;
  while (!text.empty()) {
    const size_t other = std::min(text.find_first_of(kWord), text.size());
    out += text.substr(0, other);
    text.remove_prefix(other);
    const size_t end = std::min(text.find_first_not_of(kWord), text.size());
    const std::string_view word = text.substr(0, end);
    const Formula::Name* name = FindNamed(names, word);
    out += name != nullptr ? of(*name) : std::string(word);
    text.remove_prefix(end);
  }
  return out;
}

}  // namespace

Formula::Formula(std::string_view name, std::string_view text) : name_(name) {
  Diagnostics diagnostics;
  expr_ = ParseExpr(text, {}, diagnostics);
  Check(expr_ != nullptr, "a formula that cannot be parsed");
}

double Formula::operator()(Bindings names, const Fans& fans) const {
  Diagnostics diagnostics;
  const LookupScope scope([&](std::string_view name) {
    const Name* known = FindNamed(names, name);
    return known == nullptr ? std::nullopt : std::optional<Value>(known->value);
  });
  const auto value = EvaluateNumber(*expr_, scope, diagnostics);
  Check(value.has_value(), "a formula without a value");
  if (fans.explains()) {
    const std::string& text = TextOf(*expr_);
    fans.Explain(
        {name_,
         Substitute(text, names, [](const Name& n) { return std::string(n.shown); }),
         Substitute(text, names, [](const Name& n) { return fmt::format("{:.6g}", n.value); }),
         *value,
         {}});
  }
  return *value;
}

}  // namespace shardinit
