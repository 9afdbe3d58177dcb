#include "generate/placed_numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "graph/engines/jax_draws.h"
#include "graph/engines/torch_draws.h"
#include "kernels/kernels.h"
#include "kernels/torch_cpu.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

// Scattered numbers that lie within such a window are made with all those between.
constexpr uint64_t kLongestWindow = 1 << 22;
// JAX's numbers cost the same wherever they are.
constexpr uint64_t kLongestJaxWindow = 1 << 10;

}  // namespace

struct PlacedNumbers::Permutation {
  std::once_flag once;
  std::vector<uint32_t> values;
};

PlacedNumbers::PlacedNumbers(const Program::PlacedCall& call, const Stream& stream)
    : function_(call.function), drawn_(TorchDrawsOf(call, stream)), sampler_(JaxSamplerOf(call)) {
  if (function_.kind == Program::PlacedKind::kPermutation) {
    permutation_ = std::make_unique<Permutation>();
  } else if (function_.kind == Program::PlacedKind::kInteger) {
    range_ = static_cast<uint64_t>(call.numbers[1]);
  }
}

PlacedNumbers::~PlacedNumbers() = default;
PlacedNumbers::PlacedNumbers(PlacedNumbers&&) noexcept = default;

void PlacedNumbers::Make(uint64_t first, size_t count, Window& window) const {
  window.first = first;
  window.values.resize(count);
  switch (function_.kind) {
    case Program::PlacedKind::kWord:
      for (size_t i = 0; i < count; ++i) {
        window.values[i] = torch_cpu::WordAt(drawn_.stream, drawn_.stream.position + first + i);
      }
      return;
    case Program::PlacedKind::kInteger:
      for (size_t i = 0; i < count; ++i) {
        window.values[i] =
            static_cast<double>(torch_cpu::IntegerAt(drawn_.stream, first + i, range_));
      }
      return;
    case Program::PlacedKind::kPermutation:
      std::call_once(permutation_->once, [&] {
        permutation_->values =
            torch_cpu::Permutation(drawn_.stream, static_cast<uint32_t>(drawn_.elements));
      });
      std::copy_n(permutation_->values.begin() + static_cast<std::ptrdiff_t>(first), count,
                  window.values.begin());
      return;
    case Program::PlacedKind::kJaxBits:
    case Program::PlacedKind::kJaxUniform:
    case Program::PlacedKind::kJaxNormal:
    case Program::PlacedKind::kJaxTruncatedNormal: {
      auto* bytes = reinterpret_cast<uint8_t*>(window.values.data());
      kernels::Fill(*sampler_, drawn_.stream, first, count, DType::f32, bytes);
      const bool are_words = function_.kind == Program::PlacedKind::kJaxBits;
      for (size_t i = count; i-- > 0;) {
        window.values[i] = Decode(bytes + i * 4, are_words ? DType::u32 : DType::f32);
      }
      return;
    }
    case Program::PlacedKind::kUniform:
    case Program::PlacedKind::kNormal:
    case Program::PlacedKind::kPairs:
    case Program::PlacedKind::kTruncatedNormal: {
      // Encoded numbers take no more bytes than doubles: decoding from the last one on overwrites
      // none that is still needed.
      auto* bytes = reinterpret_cast<uint8_t*>(window.values.data());
      kernels::FillTorch(drawn_, first, count, bytes);
      const auto size = static_cast<size_t>(InfoOf(drawn_.dtype).bytes);
      for (size_t i = count; i-- > 0;) {
        window.values[i] = Decode(bytes + i * size, drawn_.dtype);
      }
      return;
    }
  }
}

void PlacedNumbers::Get(const double* element, size_t count, Window& window, double* out) const {
  const auto exists = [&](double e) {
    return e >= 0 && e < static_cast<double>(drawn_.elements) && std::trunc(e) == e;
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
      if (high - low >= (sampler_ ? kLongestJaxWindow : kLongestWindow)) {
        low = high = at;
        for (size_t k = i + 1; k < count && element[k] == element[k - 1] + 1; ++k) {
          if (exists(element[k])) ++high;
        }
      }
      Make(low, static_cast<size_t>(high - low + 1), window);
    }
    out[i] = window.values[at - window.first];
  }
}

}  // namespace shardinit
