// Chooses and describes the tensors that `graph` shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/stored/view.h"
#include "plan/plan.h"

namespace shardinit {

using Tensors = std::vector<const Tensor*>;

// The tensors that are shown. Without a layout the drawn tensors are the stored ones.
struct Shown {
  const Plan& plan;
  Tensors drawn, stored;
  std::vector<int64_t> uses;  // with a layout: by drawn tensor, its uses

  // Counts stored tensors that are a drawn one that is used elsewhere, too.
  int64_t CountTies(const Tensors& tensors) const;
};

// Calls `f` with the index of each drawn tensor that a view is made of.
template <typename F>
void ForEachSource(const ViewNode& node, F f) {
  if (node.operation == nullptr) f(node.tensor);
  for (const ViewNode& of : node.of) ForEachSource(of, f);
}

// Chooses the tensors whose path matches; of a layout, those that match or are made of a drawn one
// that does, and all drawn ones that these are made of.
Shown Choose(const Plan& plan, const std::string& only);

// Returns the name, the number of tensors and parameters, the bytes and the mesh.
std::string HeadingOf(const Shown& shown);

// The columns of a tensor, or of several that stand as one.
struct TensorText {
  std::string dtype, shape, partition, values;
};

TensorText TextOf(const Tensors& tensors, const Shown& shown);

}  // namespace shardinit
