// Selects and describes the tensors that `graph` shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/stored/view.h"
#include "plan/plan.h"

namespace shardinit {

using Tensors = std::vector<const Tensor*>;

// The selected tensors. Without a layout, the drawn tensors are the stored ones.
struct Shown {
  const Plan& plan;
  Tensors drawn, stored;
  std::vector<int64_t> uses;  // with a layout: how often each drawn tensor is used

  // Counts the stored tensors that equal a drawn tensor with other uses.
  int64_t CountTies(const Tensors& tensors) const;
};

// Calls `f` with the index of each drawn tensor in a view.
template <typename F>
void ForEachSource(const ViewNode& node, F f) {
  if (node.operation == nullptr) f(node.tensor);
  for (const ViewNode& of : node.of) ForEachSource(of, f);
}

// Selects the tensors whose path matches. With a layout, selects the stored tensors that match or
// are made of a matching drawn tensor, and all drawn tensors they are made of.
Shown Choose(const Plan& plan, const std::string& only);

// Returns the name, the number of tensors and parameters, the bytes and the mesh.
std::string HeadingOf(const Shown& shown);

// The columns of one tensor, or of several that share a row.
struct TensorText {
  std::string dtype, shape, partition, values;
};

TensorText TextOf(const Tensors& tensors, const Shown& shown);

}  // namespace shardinit
