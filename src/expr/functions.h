// The built-in functions of expressions: one row each.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "expr/elementary.h"
#include "expr/expr.h"
#include "expr/program.h"

namespace shardinit {

// What a function gives: a value, or why there is none ("overflows …").
struct CallResult {
  std::optional<Value> value;
  std::string problem;
};

struct Function {
  std::string_view name;
  int least_arguments;
  int most_arguments;  // -1: any number.
  // For one number. Null: only elements have it.
  CallResult (*call)(std::span<const Value> arguments);
  // For elements; what takes any number applies it from left to right.
  std::optional<ElementOp> element = {};
  std::optional<Draw> draw = {};
  std::optional<Program::PlacedFunction> placed = {};
};

std::span<const Function> Functions();

// Null: no such function.
const Function* FindFunction(std::string_view name);

// A value that stands for an exact integer: an integer, or a float that has
// no fraction and is at most 2^53 in magnitude.
std::optional<int64_t> ExactInteger(const Value& value);

double ToDouble(const Value& value);

// As a message shows it: 4096, 2.5, 1e-05.
std::string FormatValue(const Value& value);

}  // namespace shardinit
