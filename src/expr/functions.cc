#include "expr/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked_math.h"

namespace shardinit {
namespace {

CallResult Fail(std::string problem) {
  return {std::nullopt, std::move(problem)};
}

// IEEE-754 asks for a correctly rounded square root: the same on every machine.
CallResult Sqrt(std::span<const Value> arguments) {
  const double x = ToDouble(arguments[0]);
  if (x < 0)
    return Fail(fmt::format("the square root of {} is not a real number",
                            FormatValue(arguments[0])));
  return {std::sqrt(x), {}};
}

template <bool kLargest>
CallResult Extreme(std::span<const Value> arguments) {
  const bool integers = std::all_of(
      arguments.begin(), arguments.end(),
      [](const Value& v) { return std::holds_alternative<int64_t>(v); });
  const auto less = [&](const Value& a, const Value& b) {
    return integers ? std::get<int64_t>(a) < std::get<int64_t>(b)
                    : ToDouble(a) < ToDouble(b);
  };
  const Value& found =
      kLargest ? *std::max_element(arguments.begin(), arguments.end(), less)
               : *std::min_element(arguments.begin(), arguments.end(), less);
  if (integers) return {found, {}};
  return {ToDouble(found), {}};
}

// Applies `f` to two exact integers, the second positive.
template <typename F>
CallResult OnIntegers(std::span<const Value> arguments, F f) {
  int64_t integers[2];
  for (int i = 0; i < 2; ++i) {
    const std::optional<int64_t> exact = ExactInteger(arguments[i]);
    if (!exact)
      return Fail(fmt::format("needs whole numbers, not {}",
                              FormatValue(arguments[i])));
    integers[i] = *exact;
  }
  if (integers[1] <= 0)
    return Fail(
        fmt::format("needs a divisor of at least 1, not {}", integers[1]));
  const std::optional<int64_t> result = f(integers[0], integers[1]);
  if (!result) return Fail("overflows 64-bit integers");
  return {*result, {}};
}

CallResult CallCeilDiv(std::span<const Value> arguments) {
  return OnIntegers(arguments, [](int64_t a, int64_t b) {
    return std::optional(CeilDiv(a, b));
  });
}

CallResult CallRoundUp(std::span<const Value> arguments) {
  return OnIntegers(arguments, RoundUp);
}

constexpr Function kFunctions[] = {
    {"ceil_div", "a / b, rounded up to a whole number", 2, 2, CallCeilDiv},
    {"max", "the largest argument", 1, -1, Extreme<true>},
    {"min", "the smallest argument", 1, -1, Extreme<false>},
    {"round_up", "the smallest multiple of b that is at least a", 2, 2,
     CallRoundUp},
    {"sqrt", "the square root, a float", 1, 1, Sqrt},
};

}  // namespace

std::span<const Function> Functions() { return kFunctions; }

const Function* FindFunction(std::string_view name) {
  for (const Function& function : kFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

std::optional<int64_t> ExactInteger(const Value& value) {
  if (const int64_t* integer = std::get_if<int64_t>(&value)) return *integer;
  const double number = std::get<double>(value);
  if (std::abs(number) > 0x1p53 || std::trunc(number) != number)
    return std::nullopt;
  return static_cast<int64_t>(number);
}

double ToDouble(const Value& value) {
  return std::visit([](auto v) { return static_cast<double>(v); }, value);
}

std::string FormatValue(const Value& value) {
  return std::visit([](auto v) { return fmt::format("{}", v); }, value);
}

}  // namespace shardinit
