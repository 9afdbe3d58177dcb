#include "expr/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked_math.h"
#include "base/exact_math.h"
#include "base/table.h"

namespace shardinit {
namespace {

CallResult Fail(std::string problem) { return {std::nullopt, std::move(problem)}; }

// IEEE-754 requires a correctly rounded square root, so it is the same on every machine.
CallResult Sqrt(std::span<const Value> arguments) {
  const double x = ToDouble(arguments[0]);
  if (x < 0)
    return Fail(
        fmt::format("the square root of {} is not a real number", FormatValue(arguments[0])));
  return {std::sqrt(x), {}};
}

template <bool kLargest>
CallResult Extreme(std::span<const Value> arguments) {
  const bool integers = std::ranges::all_of(
      arguments, [](const Value& v) { return std::holds_alternative<int64_t>(v); });
  const auto less = [&](const Value& a, const Value& b) {
    return integers ? std::get<int64_t>(a) < std::get<int64_t>(b) : ToDouble(a) < ToDouble(b);
  };
  const Value& found = kLargest ? *std::ranges::max_element(arguments, less)
                                : *std::ranges::min_element(arguments, less);
  if (integers) return {found, {}};
  return {ToDouble(found), {}};
}

// Applies `f` to two exact integers, the second positive.
template <typename F>
CallResult OnIntegers(std::span<const Value> arguments, F f) {
  int64_t integers[2];
  for (int i = 0; i < 2; ++i) {
    const std::optional<int64_t> exact = ExactInteger(arguments[i]);
    if (!exact) return Fail(fmt::format("needs whole numbers, not {}", FormatValue(arguments[i])));
    integers[i] = *exact;
  }
  if (integers[1] <= 0)
    return Fail(fmt::format("needs a divisor of at least 1, not {}", integers[1]));
  const std::optional<int64_t> result = f(integers[0], integers[1]);
  if (!result) return Fail("overflows 64-bit integers");
  return {*result, {}};
}

CallResult CallCeilDiv(std::span<const Value> arguments) {
  return OnIntegers(arguments, [](int64_t a, int64_t b) { return std::optional(CeilDiv(a, b)); });
}

CallResult CallRoundUp(std::span<const Value> arguments) { return OnIntegers(arguments, RoundUp); }

CallResult CallAbs(std::span<const Value> arguments) {
  if (const int64_t* integer = std::get_if<int64_t>(&arguments[0])) {
    const std::optional<int64_t> size = *integer < 0 ? Subtract(0, *integer) : *integer;
    if (!size) return Fail("overflows 64-bit integers");
    return {*size, {}};
  }
  return {std::fabs(std::get<double>(arguments[0])), {}};
}

CallResult CallFloor(std::span<const Value> arguments) {
  if (std::holds_alternative<int64_t>(arguments[0])) return {arguments[0], {}};
  return {std::floor(std::get<double>(arguments[0])), {}};
}

CallResult CallMod(std::span<const Value> arguments) {
  return OnIntegers(arguments, [](int64_t a, int64_t b) {
    const int64_t rest = a % b;
    return std::optional(rest < 0 ? rest + b : rest);
  });
}

CallResult CallClip(std::span<const Value> arguments) {
  const CallResult above = Extreme<true>(arguments.first(2));
  const Value bounds[] = {*above.value, arguments[2]};
  return Extreme<false>(bounds);
}

CallResult CallWhere(std::span<const Value> arguments) {
  return {ToDouble(arguments[0]) != 0 ? arguments[1] : arguments[2], {}};
}

CallResult Real(double result, std::span<const Value> arguments) {
  if (!std::isnan(result)) return {result, {}};
  return Fail(fmt::format("of {} is not a real number", FormatValue(arguments.front())));
}

// MPFR computes single numbers and rounds correctly.
template <double (*kFunction)(double)>
CallResult Exact(std::span<const Value> arguments) {
  return Real(kFunction(ToDouble(arguments[0])), arguments);
}

CallResult CallPow(std::span<const Value> arguments) {
  return Real(exact::Pow(ToDouble(arguments[0]), ToDouble(arguments[1])), arguments);
}

template <ElementOp kOp>
CallResult CallOne(std::span<const Value> arguments) {
  return Real(Apply(kOp, ToDouble(arguments[0])), arguments);
}

constexpr Function kFunctions[] = {
    {"abs", "the magnitude of a", 1, 1, CallAbs, ElementOp::kAbs},
    {"bf16", "a rounded to bf16, ties to even", 1, 1, CallOne<ElementOp::kBf16>, ElementOp::kBf16},
    {"bits", "a random whole number from 0 to 4294967295 for each element", 0, 0, nullptr,
     std::nullopt, Draw::kBits},
    {"ceil_div", "a / b, rounded up", 2, 2, CallCeilDiv, ElementOp::kCeilDiv},
    {"clip", "a, but at least b and at most c", 3, 3, CallClip, ElementOp::kClip},
    {"cos", "the cosine of a", 1, 1, Exact<exact::Cos>, ElementOp::kCos},
    {"erf_inv", "the number whose error function is a", 1, 1, CallOne<ElementOp::kErfInv>,
     ElementOp::kErfInv},
    {"exp", "e to the power of a", 1, 1, Exact<exact::Exp>, ElementOp::kExp},
    {"expm1", "e to the power of a, less 1, without the error of the subtraction", 1, 1,
     Exact<exact::Expm1>, ElementOp::kExpm1},
    {"f16", "a rounded to f16, ties to even", 1, 1, CallOne<ElementOp::kF16>, ElementOp::kF16},
    {"f32", "a rounded to f32, ties to even", 1, 1, CallOne<ElementOp::kF32>, ElementOp::kF32},
    {"floor", "the largest whole number up to a", 1, 1, CallFloor, ElementOp::kFloor},
    {"log", "the natural logarithm of a", 1, 1, Exact<exact::Log>, ElementOp::kLog},
    {"log1p", "the natural logarithm of 1 + a, without the error of the addition", 1, 1,
     Exact<exact::Log1p>, ElementOp::kLog1p},
    {"max", "the largest of its arguments", 1, -1, Extreme<true>, ElementOp::kMax},
    {"min", "the smallest of its arguments", 1, -1, Extreme<false>, ElementOp::kMin},
    {"mod", "the remainder of a / b, from 0 to b - 1, as `a % b`", 2, 2, CallMod, ElementOp::kMod},
    {"normal", "a random number for each element, of mean 0 and standard deviation 1", 0, 0,
     nullptr, std::nullopt, Draw::kNormal},
    {"pow", "a to the power of b", 2, 2, CallPow, ElementOp::kPow},
    {"round_up", "the smallest multiple of b that is at least a", 2, 2, CallRoundUp,
     ElementOp::kRoundUp},
    {"sin", "the sine of a", 1, 1, Exact<exact::Sin>, ElementOp::kSin},
    {.name = "source",
     .description = "the element at these indices of a tensor of source a, as in `source('base', "
                    "'w', i0, i1)`; without indices, at the element's own",
     .least_arguments = 1,
     .most_arguments = -1,
     .call = nullptr,
     .of_source = SourceNumber::kElement},
    {"source_mean",
     "the mean of all elements of a tensor of source a, as in `source_mean('base', 'w')`", 1, 2,
     nullptr, std::nullopt, std::nullopt, nullptr, SourceNumber::kMean},
    {"source_std",
     "the standard deviation of all elements of a tensor of source a, as in `source_std('base', "
     "'w')`",
     1, 2, nullptr, std::nullopt, std::nullopt, nullptr, SourceNumber::kStd},
    {"sqrt", "the square root of a", 1, 1, Sqrt, ElementOp::kSqrt},
    {"tanh", "the hyperbolic tangent of a", 1, 1, Exact<exact::Tanh>, ElementOp::kTanh},
    {"uniform", "a random number from 0 to below 1 for each element", 0, 0, nullptr, std::nullopt,
     Draw::kUniform},
    {"where", "b if a is not 0, else c", 3, 3, CallWhere, ElementOp::kWhere},
};

std::vector<Function>& PlacedRows() {
  static std::vector<Function> rows;
  return rows;
}

}  // namespace

bool EnterFunctions(std::span<const PlacedFunction> functions) {
  for (const PlacedFunction& row : functions) {
    const int arguments = static_cast<int>(row.arguments.size());
    PlacedRows().push_back(
        {row.name, row.description, arguments, arguments, nullptr, {}, {}, &row});
  }
  return true;
}

const Function* FindFunction(std::string_view name) {
  const Function* const found = FindNamed(kFunctions, name);
  return found != nullptr ? found : FindNamed(PlacedRows(), name);
}

std::vector<std::string> FunctionNames() {
  std::vector<std::string> names = NamesOf(kFunctions);
  for (std::string& name : NamesOf(PlacedRows())) names.push_back(std::move(name));
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> FunctionsLike(std::string_view name) {
  for (const Function& function : PlacedRows()) {
    // The names of a framework's functions begin with the framework's name, such as `torch_normal`.
    const std::string_view framework = function.name.substr(0, function.name.find('_'));
    if (name.starts_with(framework)) return NamesOf(PlacedRows());
  }
  return NamesOf(kFunctions);
}

std::optional<int64_t> ExactInteger(const Value& value) {
  if (const int64_t* integer = std::get_if<int64_t>(&value)) return *integer;
  const double number = std::get<double>(value);
  if (std::abs(number) > 0x1p53 || std::trunc(number) != number) return std::nullopt;
  return static_cast<int64_t>(number);
}

double ToDouble(const Value& value) {
  return std::visit([](auto v) { return static_cast<double>(v); }, value);
}

std::string FormatValue(const Value& value) {
  return std::visit([](auto v) { return fmt::format("{}", v); }, value);
}

}  // namespace shardinit
