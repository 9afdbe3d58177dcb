// Converts elements of a source to another type or another convention.
#pragma once

#include <atomic>
#include <vector>

#include "generate/workers.h"

namespace shardinit {

// Counts the elements that changed, and how many of them a round trip would not restore exactly.
struct ConversionCounts {
  std::atomic<int64_t> changed{0}, lost{0};
};

// Returns the elements of `source`, whose type is `from`, in the type of `tensor`.
BoxElements ConvertElements(BoxElements source, DType from, const Tensor& tensor);

// The conventions of the elements of a box.
struct Conventions {
  std::vector<Convention> all;
  // Each element's index in `all`, as a uint32_t. If null, all elements have the first one.
  BoxElements which = {};
};

// Does the same for a source whose elements have other conventions than the tensor. Computes in
// f32, or in f64 if `from` is f64, and rounds once to the tensor's type. Elements that already have
// the tensor's convention only change their type.
BoxElements RescaleElements(BoxElements source, DType from, Conventions of_source,
                            const Tensor& tensor, ConversionCounts* losses);

}  // namespace shardinit
