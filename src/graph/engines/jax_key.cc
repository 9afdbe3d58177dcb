#include "graph/engines/jax_key.h"

#include <limits>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "graph/scope.h"
#include "rng/jax_threefry.h"

namespace shardinit {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// Returns what `_fold_in_static` of flax/core/scope.py folds in: the first word of the SHA-1 of
// UTF-8 texts and of the bytes of numbers, big-endian without leading zeros.
std::optional<uint32_t> HashOfStatics(const std::vector<JaxKeySpec::Step::Static>& statics,
                                      const Scope& names, Diagnostics& diagnostics) {
  std::string bytes;
  for (const auto& [text, expr] : statics) {
    if (expr) {
      const auto number =
          EvaluateInteger(*expr, names, 0, kLargest, "a number of `fold_in`", diagnostics);
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
                          : static_cast<uint64_t>(number(numbers[0], 0, kLargest, "`seed`")));
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
      const int64_t count = number(numbers[0], 1, kLargest, "the number of keys of `split`");
      const int64_t index = number(numbers[1], 0, count - 1, "the index of `split`");
      key = jax_threefry::SplitKey(key, static_cast<uint64_t>(index));
    }
  }
  return good ? std::optional(key) : std::nullopt;
}

}  // namespace shardinit
