// Arithmetic in specs: exact integers, IEEE doubles, names. Shapes must be exact, so integers are
// int64 with checked operations, and a division of integers is an integer if it is exact, else a
// double.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/diagnostics.h"
#include "base/variant.h"

namespace shardinit {

using Value = std::variant<int64_t, double>;

// The value of a name is a number, text, or a list of these. Text can only be compared.
using VarItem = Variant<int64_t, double, std::string>;
struct VarValue {
  bool is_list = false;
  std::vector<VarItem> items;  // one if it is no list
};

// An immutable syntax tree; every node keeps its place in the user's text.
class Expr;
using ExprPtr = std::shared_ptr<const Expr>;

inline constexpr size_t kLongestExpression = 4096;

// Parses `text`, whose first byte is at `span` in its source. Reports errors and returns null.
// Depth (64 levels) and length are limited: deeper or longer text is an error.
ExprPtr ParseExpr(std::string_view text, Span span, Diagnostics& diagnostics);

Span SpanOf(const Expr& expr);

// The text that was parsed, as the user wrote it.
const std::string& TextOf(const Expr& expr);

// Returns the names that the expression uses, each once, in order.
std::vector<std::string> NamesIn(const Expr& expr);

// Whether the expression is only a name, which may stand for a word.
bool IsName(const Expr& expr);

// Returns true if expressions have a meaning of their own for a name: `and`, `or`, `not`, `true`,
// `false`.
bool IsReservedName(std::string_view name);

// The names that an expression may use.
class Scope {
 public:
  virtual ~Scope() = default;
  // Returns nothing if the name is unknown or broken.
  virtual std::optional<Value> Find(const std::string& name, Diagnostics& diagnostics) const = 0;
  // Returns what the name stands for; null if the name is unknown, broken or that of a number
  // alone.
  virtual const VarValue* FindVariable(const std::string&, Diagnostics&) const { return nullptr; }
  // Whether the name's own mistake has been reported, so that one mistake gives one message: an
  // expression that uses the name has no value either.
  virtual bool IsBroken(const std::string&) const { return false; }
  // The names to suggest ("did you mean").
  virtual std::vector<std::string> Names() const { return {}; }
  // Returns where a name is known that is unknown here; empty: nowhere.
  virtual std::string PlaceOf(const std::string&) const { return {}; }
};

class LookupScope : public Scope {
 public:
  using Lookup = std::function<std::optional<Value>(std::string_view name)>;
  explicit LookupScope(Lookup find) : find_(std::move(find)) {}
  std::optional<Value> Find(const std::string& name, Diagnostics&) const override {
    return find_(name);
  }

 private:
  const Lookup find_;
};

// These report an error at the guilty subexpression's span and return nothing: overflow, division
// by zero, NaN or infinity, unknown names, wrong arity. They report nothing about a broken name.
std::optional<Value> Evaluate(const Expr& expr, const Scope& scope, Diagnostics& diagnostics);

// The same for an expression that may give text, or be the name of a list.
std::optional<VarValue> EvaluateVariable(const Expr& expr, const Scope& scope,
                                         Diagnostics& diagnostics);

// Also reports an error unless the result is an integer in [low, high]. `what` names it in the
// message: "dimension 0", "axis `fsdp`".
std::optional<int64_t> EvaluateInteger(const Expr& expr, const Scope& scope, int64_t low,
                                       int64_t high, std::string_view what,
                                       Diagnostics& diagnostics);

std::optional<double> EvaluateNumber(const Expr& expr, const Scope& scope,
                                     Diagnostics& diagnostics);

}  // namespace shardinit
