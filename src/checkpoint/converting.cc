#include "checkpoint/converting.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tensor/convert.h"
#include "tensor/encode.h"
#include "tensor/numbers.h"

namespace shardinit {
namespace {

[[noreturn]] void ThrowNotHeld(const Tensor& tensor, const void* element, DType from) {
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` has the value {}, which {} cannot hold", tensor.path(),
                          NumberInText(element, from), InfoOf(tensor.dtype()).name));
}

// Converts a value from one convention to another. Skips steps without effect, because they would
// change -0.
template <typename T>
T ConvertConvention(T value, const Convention& from, const Convention& to) {
  if (from.plus != 0) value -= static_cast<T>(from.plus);
  if (from.times != 1) {
    value = from.back != 0 ? value * static_cast<T>(from.back) : value / static_cast<T>(from.times);
  }
  if (to.times != 1) value *= static_cast<T>(to.times);
  if (to.plus != 0) value += static_cast<T>(to.plus);
  return value;
}

// Converts an element to another type and convention. Returns false if the type cannot hold it.
bool Change(const void* in, DType from, const Convention& of_source, DType to,
            const Convention& convention, void* out) {
  if (NumberCount(from) > 1) return false;
  const double value = Decode(in, from);
  if (from == DType::f64) {
    const double changed = ConvertConvention(value, of_source, convention);
    return (std::isfinite(changed) || !std::isfinite(value)) &&
           Convert(&changed, DType::f64, to, out);
  }
  const float changed = ConvertConvention(static_cast<float>(value), of_source, convention);
  return (std::isfinite(changed) || !std::isfinite(value)) &&
         Convert(&changed, DType::f32, to, out);
}

}  // namespace

BoxElements ConvertElements(BoxElements source, DType from, const Tensor& tensor) {
  return [source = std::move(source), from, &tensor](int64_t first, int64_t count, void* out) {
    const int bytes = InfoOf(from).bytes;
    std::vector<uint8_t> elements(static_cast<size_t>(count * bytes));
    source(first, count, elements.data());
    auto* at = static_cast<uint8_t*>(out);
    for (const uint8_t* element = elements.data(); count > 0; --count, element += bytes) {
      if (!Convert(element, from, tensor.dtype(), at)) ThrowNotHeld(tensor, element, from);
      at += InfoOf(tensor.dtype()).bytes;
    }
  };
}

BoxElements RescaleElements(BoxElements source, DType from, Conventions of_source,
                            const Tensor& tensor, ConversionCounts* losses) {
  return [source = std::move(source), from, of_source = std::move(of_source), &tensor, losses](
             int64_t first, int64_t count, void* out) {
    const auto bytes = static_cast<size_t>(InfoOf(from).bytes);
    std::vector<uint8_t> elements(static_cast<size_t>(count) * bytes);
    source(first, count, elements.data());
    std::vector<uint32_t> which(static_cast<size_t>(count));
    if (of_source.which) of_source.which(first, count, which.data());
    auto* at = static_cast<uint8_t*>(out);
    int64_t changed = 0, lost = 0;
    uint64_t back;
    const uint8_t* element = elements.data();
    for (const uint32_t number : which) {
      const Convention& convention = of_source.all[number];
      if (convention == tensor.convention()) {
        if (!Convert(element, from, tensor.dtype(), at)) ThrowNotHeld(tensor, element, from);
      } else {
        if (!Change(element, from, convention, tensor.dtype(), tensor.convention(), at)) {
          ThrowNotHeld(tensor, element, from);
        }
        const bool returns =
            Change(at, tensor.dtype(), tensor.convention(), from, convention, &back) &&
            memcmp(&back, element, bytes) == 0;
        ++changed;
        lost += !returns;
      }
      element += bytes;
      at += InfoOf(tensor.dtype()).bytes;
    }
    losses->changed += changed;
    losses->lost += lost;
  };
}

}  // namespace shardinit
