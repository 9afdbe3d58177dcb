#include "graph/engines/jax_threefry.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <vector>

#include "base/overloaded.h"
#include "base/sha256.h"
#include "graph/scope.h"
#include "init/sampled.h"
#include "rng/jax_threefry.h"

namespace shardinit {
namespace {

// The kinds of numbers that expression functions draw; the values of `PlacedFunction::kind`.
enum JaxKind : int { kJaxBits, kJaxNormal, kJaxTruncatedNormal, kJaxUniform };

constexpr PlacedArgument kFirstWord = {"the first word of the key", 0},
                         kSecondWord = {"the second word of the key", 0},
                         kJaxElement = {"the number's place in the draw", 0};
constexpr PlacedArgument kOfKey[] = {kFirstWord, kSecondWord, kJaxElement},
                         kOfKeyWithin[] = {kFirstWord, kSecondWord, kJaxElement, {"low"}, {"high"}};

constexpr PlacedFunction kJaxFunctions[] = {
    {"jax_bits", "a word of jax.random.bits", kOfKey, 2, kJaxBits, DType::f32},
    {"jax_normal", "a number of jax.random.normal", kOfKey, 2, kJaxNormal, DType::f32},
    {"jax_truncated_normal", "a number of jax.random.truncated_normal", kOfKeyWithin, 2,
     kJaxTruncatedNormal, DType::f32},
    {"jax_uniform", "a number of jax.random.uniform", kOfKeyWithin, 2, kJaxUniform, DType::f32},
};

std::string RefusalOfJaxCall(const Program::PlacedCall& call) {
  const std::vector<double>& n = call.numbers;
  for (const double word : {n[0], n[1]}) {
    if (word > 0xFFFFFFFFu)
      return fmt::format("{} is not a word of a key, which has 32 bits", word);
  }
  if (n.size() == 2) return {};
  const double low = n[2], high = n[3];
  const auto narrow = [](double x) { return static_cast<float>(x); };
  if (call.function->kind == kJaxUniform) {
    if (!IsValidScale(low) || !IsValidScale(high)) {
      return fmt::format("`low` {} and `high` {} must be 0 or of a magnitude from {} to {}", low,
                         high, kMinScale, kMaxScale);
    }
    const bool has_span =
        narrow(low) < narrow(high) && IsValidScale(double{narrow(high)} - double{narrow(low)});
    return has_span ? "" : fmt::format("`low` {} is not below `high` {}", low, high);
  }
  if (!AreValidCutoffs(low, high)) {
    return fmt::format("there are too few numbers between the cut-offs {} and {}", low, high);
  }
  return std::string(kJaxThreefry.refusal(JaxSamplerOf(call)));
}

std::string JaxRefusal(const Tensor& tensor) {
  return std::visit(
      Overloaded{[](const Sampled auto&) { return std::string(); },
                 [](const OneOf<Constant, Orthogonal, Sparse, Normalized, FromFile, FromSource,
                                Norm> auto&) { return std::string(); },
                 [](const OneOf<RowsLike, Parts> auto& d) {
                   return std::string(DrawsOf(d) > 0 ? kRandomRows : "");
                 },
                 [](const Expression& expression) {
                   for (const Program::PlacedCall& call : expression.program->placed) {
                     if (std::string why = RefusalOfJaxCall(call); !why.empty()) return why;
                   }
                   return std::string();
                 }},
      tensor.distribution());
}

constexpr int64_t kLargestStatic = std::numeric_limits<int64_t>::max();

// Returns what `_fold_in_static` of flax/core/scope.py folds in: the first word of the SHA-1 of
// texts in UTF-8 and of numbers in big-endian bytes without leading zeros.
std::optional<uint32_t> HashOfStatics(const std::vector<JaxKeySpec::Step::Static>& statics,
                                      const Scope& names, Diagnostics& diagnostics) {
  std::string bytes;
  for (const auto& [text, expr] : statics) {
    if (expr) {
      const auto number =
          EvaluateInteger(*expr, names, 0, kLargestStatic, "a number of `fold_in`", diagnostics);
      if (!number) return {};
      for (int shift = 56; shift >= 0; shift -= 8) {
        if (*number >> shift != 0) bytes += static_cast<char>(*number >> shift & 0xFF);
      }
    } else {
      const auto evaluated = EvaluatePath(text, names, diagnostics);
      if (!evaluated) return {};
      bytes += *evaluated;
    }
  }
  const auto digest = Sha1Of(bytes);
  return uint32_t{digest[0]} << 24 | uint32_t{digest[1]} << 16 | uint32_t{digest[2]} << 8 |
         digest[3];
}

}  // namespace

extern constinit const GraphEngine kGraphJaxThreefry = {
    .engine = &kJaxThreefry,
    .functions = kJaxFunctions,
    .refusal = JaxRefusal,
};

Sampler JaxSamplerOf(const Program::PlacedCall& call) {
  const std::vector<double>& n = call.numbers;
  switch (call.function->kind) {
    case kJaxNormal:
      return MakeNormal(0, 1);
    case kJaxUniform:
      return MakeUniform(n[2], n[3]);
    case kJaxTruncatedNormal:
      return MakeTruncatedNormal(0, 1, n[2], n[3]);
    default:
      return BitsSampler{};
  }
}

Stream JaxStreamOf(const Program::PlacedCall& call) {
  const auto word = [&](size_t i) { return static_cast<uint64_t>(call.numbers[i]); };
  return {.key = word(1) << 32 | word(0), .engine = &kJaxThreefry};
}

std::optional<uint64_t> EvaluateJaxKey(const JaxKeySpec& spec, const Scope& names,
                                       Diagnostics& diagnostics) {
  constexpr int64_t kWord = std::numeric_limits<uint32_t>::max();
  bool good = true;
  const auto number = [&](const ExprPtr& expr, int64_t low, int64_t high, std::string_view what) {
    const auto value =
        expr ? EvaluateInteger(*expr, names, low, high, what, diagnostics) : std::nullopt;
    good = good && value;
    return value.value_or(low);
  };
  uint64_t key = 0;
  for (const JaxKeySpec::Step& step : spec.steps) {
    const auto& numbers = step.numbers;
    if (step.name == "seed") {
      key = jax_threefry::KeyOfSeed(
          step.large_seed ? *step.large_seed
                          : static_cast<uint64_t>(number(numbers[0], 0, kLargestStatic, "`seed`")));
    } else if (step.name == "words") {
      const auto first = static_cast<uint64_t>(number(numbers[0], 0, kWord, "a word of `words`"));
      key = static_cast<uint64_t>(number(numbers[1], 0, kWord, "a word of `words`")) << 32 | first;
    } else if (!step.statics.empty()) {
      const auto folded = HashOfStatics(step.statics, names, diagnostics);
      good = good && folded;
      key = jax_threefry::FoldIn(key, folded.value_or(0));
    } else if (step.name == "fold_in") {
      key = jax_threefry::FoldIn(key,
                                 static_cast<uint32_t>(number(numbers[0], 0, kWord, "`fold_in`")));
    } else {
      const int64_t count = number(numbers[0], 1, kLargestStatic, "the number of keys of `split`");
      const int64_t index = number(numbers[1], 0, count - 1, "the index of `split`");
      key = jax_threefry::SplitKey(key, static_cast<uint64_t>(index));
    }
  }
  return good ? std::optional(key) : std::nullopt;
}

}  // namespace shardinit
