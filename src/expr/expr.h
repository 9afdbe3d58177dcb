// Parses and evaluates the arithmetic in specs: exact integers, IEEE doubles, names. Shapes must be
// exact, so integers are int64 with checked operations. Dividing integers gives an integer if the
// quotient is exact, otherwise a double.
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

// The value of a name: a number, a text, or a list of these. Text can only be compared.
using VarItem = Variant<int64_t, double, std::string>;
struct VarValue {
  bool is_list = false;
  std::vector<VarItem> items;  // one if it is not a list
};

// An immutable syntax tree. Every node keeps its place in the user's text.
class Expr;
using ExprPtr = std::shared_ptr<const Expr>;

inline constexpr size_t kLongestExpression = 4096;

// Parses `text`, whose first byte is at `span` in its source. Reports errors and returns null. Text
// that is too deep (more than 64 levels) or too long is an error.
ExprPtr ParseExpr(std::string_view text, Span span, Diagnostics& diagnostics);

Span SpanOf(const Expr& expr);

// Returns the parsed text, as the user wrote it.
const std::string& TextOf(const Expr& expr);

// Returns the names that the expression uses, each once, in order.
std::vector<std::string> NamesIn(const Expr& expr);

// Returns whether the expression is only a name, which may be a word.
bool IsName(const Expr& expr);

// Returns true if the name has a fixed meaning in expressions: `and`, `or`, `not`, `true`, `false`.
bool IsReservedName(std::string_view name);

// The names that an expression may use.
class Scope {
 public:
  virtual ~Scope() = default;
  // Returns nothing if the name is unknown or broken.
  virtual std::optional<Value> Find(const std::string& name, Diagnostics& diagnostics) const = 0;
  // Returns the value of the name, or null if the name is unknown, broken or only a number.
  virtual const VarValue* FindVariable(const std::string&, Diagnostics&) const { return nullptr; }
  // Returns whether a mistake in the name's own definition has been reported. Expressions that use
  // such a name have no value and report nothing, so that one mistake gives one message.
  virtual bool IsBroken(const std::string&) const { return false; }
  // Returns the names to suggest ("did you mean").
  virtual std::vector<std::string> Names() const { return {}; }
  // Returns where a name that is unknown here is defined, or an empty text.
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

// These report an error at the subexpression's span and return nothing on overflow, division by
// zero, NaN or infinity, unknown names, or wrong arity. They report nothing about a broken name.
std::optional<Value> Evaluate(const Expr& expr, const Scope& scope, Diagnostics& diagnostics);

// Evaluates an expression that may be text or the name of a list.
std::optional<VarValue> EvaluateVariable(const Expr& expr, const Scope& scope,
                                         Diagnostics& diagnostics);

// Also reports an error unless the result is an integer in [low, high], which the message calls
// `what`: "dimension 0", "axis `fsdp`".
std::optional<int64_t> EvaluateInteger(const Expr& expr, const Scope& scope, int64_t low,
                                       int64_t high, std::string_view what,
                                       Diagnostics& diagnostics);

std::optional<double> EvaluateNumber(const Expr& expr, const Scope& scope,
                                     Diagnostics& diagnostics);

}  // namespace shardinit
