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
  const bool integers = std::all_of(arguments.begin(), arguments.end(), [](const Value& v) {
    return std::holds_alternative<int64_t>(v);
  });
  const auto less = [&](const Value& a, const Value& b) {
    return integers ? std::get<int64_t>(a) < std::get<int64_t>(b) : ToDouble(a) < ToDouble(b);
  };
  const Value& found = kLargest ? *std::max_element(arguments.begin(), arguments.end(), less)
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

CallResult CallErfInv(std::span<const Value> arguments) {
  return Real(Apply(ElementOp::kErfInv, ToDouble(arguments[0])), arguments);
}

template <ElementOp kOp>
CallResult CallRounded(std::span<const Value> arguments) {
  return Real(Apply(kOp, ToDouble(arguments[0])), arguments);
}

using Placed = Program::PlacedKind;

constexpr Function PlacedRow(std::string_view name, int arguments, Placed kind, DType dtype) {
  return {name, arguments, arguments, nullptr, {}, {}, Program::PlacedFunction{kind, dtype}};
}

constexpr Function kFunctions[] = {
    {"abs", 1, 1, CallAbs, ElementOp::kAbs},
    {"bf16", 1, 1, CallRounded<ElementOp::kBf16>, ElementOp::kBf16},
    {"bits", 0, 0, nullptr, {}, Draw::kBits},
    {"ceil_div", 2, 2, CallCeilDiv, ElementOp::kCeilDiv},
    {"clip", 3, 3, CallClip, ElementOp::kClip},
    {"cos", 1, 1, Exact<exact::Cos>, ElementOp::kCos},
    {"erf_inv", 1, 1, CallErfInv, ElementOp::kErfInv},
    {"exp", 1, 1, Exact<exact::Exp>, ElementOp::kExp},
    {"expm1", 1, 1, Exact<exact::Expm1>, ElementOp::kExpm1},
    {"f16", 1, 1, CallRounded<ElementOp::kF16>, ElementOp::kF16},
    {"f32", 1, 1, CallRounded<ElementOp::kF32>, ElementOp::kF32},
    {"floor", 1, 1, CallFloor, ElementOp::kFloor},
    PlacedRow("jax_bits", 3, Placed::kJaxBits, DType::f32),
    PlacedRow("jax_normal", 3, Placed::kJaxNormal, DType::f32),
    PlacedRow("jax_truncated_normal", 5, Placed::kJaxTruncatedNormal, DType::f32),
    PlacedRow("jax_uniform", 5, Placed::kJaxUniform, DType::f32),
    {"log", 1, 1, Exact<exact::Log>, ElementOp::kLog},
    {"log1p", 1, 1, Exact<exact::Log1p>, ElementOp::kLog1p},
    {"max", 1, -1, Extreme<true>, ElementOp::kMax},
    {"min", 1, -1, Extreme<false>, ElementOp::kMin},
    {"mod", 2, 2, CallMod, ElementOp::kMod},
    {"normal", 0, 0, nullptr, {}, Draw::kNormal},
    {"pow", 2, 2, CallPow, ElementOp::kPow},
    {"round_up", 2, 2, CallRoundUp, ElementOp::kRoundUp},
    {"sin", 1, 1, Exact<exact::Sin>, ElementOp::kSin},
    {"sqrt", 1, 1, Sqrt, ElementOp::kSqrt},
    {"tanh", 1, 1, Exact<exact::Tanh>, ElementOp::kTanh},
    PlacedRow("torch_normal", 6, Placed::kNormal, DType::f32),
    PlacedRow("torch_normal_bf16", 6, Placed::kNormal, DType::bf16),
    PlacedRow("torch_normal_f16", 6, Placed::kNormal, DType::f16),
    PlacedRow("torch_normal_f64", 6, Placed::kNormal, DType::f64),
    PlacedRow("torch_pairs", 5, Placed::kPairs, DType::f32),
    PlacedRow("torch_pairs_bf16", 5, Placed::kPairs, DType::bf16),
    PlacedRow("torch_pairs_f16", 5, Placed::kPairs, DType::f16),
    PlacedRow("torch_pairs_f64", 5, Placed::kPairs, DType::f64),
    PlacedRow("torch_permutation", 3, Placed::kPermutation, DType::f32),
    PlacedRow("torch_randint", 3, Placed::kInteger, DType::f32),
    PlacedRow("torch_trunc_normal", 8, Placed::kTruncatedNormal, DType::f32),
    PlacedRow("torch_trunc_normal_bf16", 8, Placed::kTruncatedNormal, DType::bf16),
    PlacedRow("torch_trunc_normal_f16", 8, Placed::kTruncatedNormal, DType::f16),
    PlacedRow("torch_trunc_normal_f64", 8, Placed::kTruncatedNormal, DType::f64),
    PlacedRow("torch_uniform", 4, Placed::kUniform, DType::f32),
    PlacedRow("torch_uniform_bf16", 4, Placed::kUniform, DType::bf16),
    PlacedRow("torch_uniform_f16", 4, Placed::kUniform, DType::f16),
    PlacedRow("torch_uniform_f64", 4, Placed::kUniform, DType::f64),
    PlacedRow("torch_word", 1, Placed::kWord, DType::f32),
    {"uniform", 0, 0, nullptr, {}, Draw::kUniform},
    {"where", 3, 3, CallWhere, ElementOp::kWhere},
};

}  // namespace

std::span<const Function> Functions() { return kFunctions; }

const Function* FindFunction(std::string_view name) { return FindNamed(kFunctions, name); }

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
