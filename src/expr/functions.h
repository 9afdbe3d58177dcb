// Lists the built-in functions of expressions, one row each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expr/elementary.h"
#include "expr/expr.h"
#include "tensor/dtype.h"

namespace shardinit {

// The result of a function: a value, or the reason why it has no value ("overflows …").
struct CallResult {
  std::optional<Value> value;
  std::string problem;
};

enum class Draw : uint8_t { kNormal, kUniform, kBits };

// An argument of a function of placed numbers.
struct PlacedArgument {
  std::string_view name;
  std::optional<double> least = {};  // lower limit of a whole number; null: any number
};

// A function of numbers that have a place, such as a place in a stream of another framework. The
// code that generates these numbers registers its functions here and defines their meaning.
struct PlacedFunction {
  std::string_view name;
  std::string_view description;  // a phrase
  std::span<const PlacedArgument> arguments;
  size_t element;        // the argument that differs between elements; others are the same for all
  int kind;              // identifies the numbers to the code that generates them
  DType dtype;           // the type in which the numbers are drawn
  bool inexact = false;  // The framework may round some of these numbers differently.
};

// A value that a function takes from a source's tensor: an element, or a number of all elements.
enum class SourceNumber : uint8_t { kElement, kMean, kStd };

struct Function {
  std::string_view name;
  std::string_view description;  // a phrase in which a is the first argument and b the second
  int least_arguments;
  int most_arguments;  // -1 for any number
  // Computes one number. Null if the function exists only for elements.
  CallResult (*call)(std::span<const Value> arguments);
  // The operation on elements. A function of any number of arguments applies it from left to right.
  std::optional<ElementOp> element = {};
  std::optional<Draw> draw = {};
  const PlacedFunction* placed = nullptr;
  std::optional<SourceNumber> of_source = {};  // Its first arguments are texts.
};

// Adds functions to the built-in ones, before main(). The rows must outlive all uses.
bool EnterFunctions(std::span<const PlacedFunction> functions);

const Function* FindFunction(std::string_view name);
std::vector<std::string> FunctionNames();  // includes the functions of other frameworks; in order

// Returns the names to suggest instead of `name`, which is not a function.
std::vector<std::string> FunctionsLike(std::string_view name);

// Returns the integer equal to a value: the value is an integer, or a float without a fraction that
// is at most 2^53 in magnitude.
std::optional<int64_t> ExactInteger(const Value& value);

double ToDouble(const Value& value);

// Returns the text of a value in messages: 4096, 2.5, 1e-05.
std::string FormatValue(const Value& value);

}  // namespace shardinit
