#include "graph/jax_key.h"

#include <limits>

#include "rng/jax_threefry.h"

namespace shardinit {

std::optional<uint64_t> EvaluateJaxKey(const JaxKeySpec& spec, const Scope& names,
                                       Diagnostics& diagnostics) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
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
