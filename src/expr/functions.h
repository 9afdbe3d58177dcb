// The built-in functions of expressions, one row each.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "expr/elementary.h"
#include "expr/expr.h"
#include "expr/program.h"

namespace shardinit {

// The result of a function: a value, or why there is none ("overflows …").
struct CallResult {
  std::optional<Value> value;
  std::string problem;
};

struct Function {
  std::string_view name;
  int least_arguments;
  int most_arguments;  // -1 for any number
  // Computes one number. Null if only elements have the function.
  CallResult (*call)(std::span<const Value> arguments);
  // The operation on elements. A function of any number of arguments applies it from left to right.
  std::optional<ElementOp> element = {};
  std::optional<Draw> draw = {};
  std::optional<Program::PlacedFunction> placed = {};
};

std::span<const Function> Functions();

// Returns null if there is no such function.
const Function* FindFunction(std::string_view name);

// Returns the integer that a value stands for: the value is an integer, or a float without a
// fraction that is at most 2^53 in magnitude.
std::optional<int64_t> ExactInteger(const Value& value);

double ToDouble(const Value& value);

// Returns the text of a value in messages: 4096, 2.5, 1e-05.
std::string FormatValue(const Value& value);

}  // namespace shardinit
