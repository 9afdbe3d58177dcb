// Computes the codes that represent given numbers with the scales of a quantized tensor.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "quantized/fresh.h"
#include "quantized/widening.h"

namespace shardinit {

// Counts the numbers that the quantized tensor did not represent before. `rounded` of them are not
// exactly represented by their new code, and `clipped` of these are outside the range of the codes.
struct NarrowingCounts {
  std::atomic<int64_t> changed{0}, rounded{0}, clipped{0};
};

// Returns whether an element of a stored tensor counts. Boxes are read with the gaps in them.
using IsCounted = std::function<bool(int64_t element)>;

// Returns a function that computes elements of widening.numbers(). `stored` reads the parts of a
// quantized tensor, and `made` reads the numbers to represent, elements of widening.made. A number
// that is represented already keeps its code. Another one gets the code of the nearest number and,
// of two, the even one. The function throws Error (kUsage) for NaN and infinity without a code.
// A code counts if the element with its first bit does.
//
// With `fresh`, each number gets the code that the library of the format chooses with these scales,
// and all numbers count as changed; `stored` needs no scales.
BoxElements Narrow(const Widening& widening, std::array<BoxElements, Widening::kParts> stored,
                   BoxElements made, IsCounted is_counted, NarrowingCounts* counts,
                   std::shared_ptr<const FreshScales> fresh = nullptr);

}  // namespace shardinit
