#include "generate/placed_numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/engines/engines.h"

namespace shardinit {

PlacedNumbers::PlacedNumbers(const Program::PlacedCall& call, const Stream& stream)
    : called_(FillEngineOf(EngineOf(call)).numbers(call, stream)) {}

void PlacedNumbers::Get(const double* element, size_t count, Window& window, double* out) const {
  const auto exists = [&](double e) {
    return e >= 0 && e < static_cast<double>(called_.elements) && std::trunc(e) == e;
  };
  const auto has = [&](uint64_t e) {
    return e >= window.first && e - window.first < window.values.size();
  };
  for (size_t i = 0; i < count; ++i) {
    if (!exists(element[i])) {
      out[i] = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    const auto at = static_cast<uint64_t>(element[i]);
    if (!has(at)) {
      // The window gets all numbers that are left, if they are near; else those that follow one
      // another.
      uint64_t low = at, high = at;
      for (size_t k = i; k < count; ++k) {
        if (!exists(element[k])) continue;
        low = std::min(low, static_cast<uint64_t>(element[k]));
        high = std::max(high, static_cast<uint64_t>(element[k]));
      }
      if (high - low >= called_.longest_window) {
        low = high = at;
        for (size_t k = i + 1; k < count && element[k] == element[k - 1] + 1; ++k) {
          if (exists(element[k])) ++high;
        }
      }
      window.first = low;
      window.values.resize(static_cast<size_t>(high - low + 1));
      called_.make(low, window.values);
    }
    out[i] = window.values[at - window.first];
  }
}

}  // namespace shardinit
