// Elements of a source as those of another type, or in another convention.
#pragma once

#include <atomic>
#include <vector>

#include "generate/workers.h"
#include "graph/graph.h"

namespace shardinit {

// Counts elements that were changed, and how many of them the way back would not give again, bit by
// bit.
struct Losses {
  std::atomic<int64_t> changed{0}, lost{0};
};

// Returns the source's elements, of type `from`, as those of a tensor.
BoxElements Converting(BoxElements source, DType from, const Tensor& tensor);

// The conventions that elements of a box have.
struct Conventions {
  std::vector<Convention> all;
  // A uint32_t for each element: the index of its convention. Without it, all have the first one.
  BoxElements which = {};
};

// Does the same for a source whose elements have other conventions than the tensor. It is computed
// in f32, or for f64 in that, and rounded once to the tensor's type. Elements that have the
// tensor's convention are converted alone.
BoxElements Rescaling(BoxElements source, DType from, Conventions of_source, const Tensor& tensor,
                      Losses* losses);

}  // namespace shardinit
