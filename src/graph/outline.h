// The tensors of a graph as the tree of their modules. Modules and tensors that are equal but for
// numbers, as the layers of a model are, stand in it once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/view.h"

namespace shardinit {

struct Outline {
  std::string name;              // Without what is above: `layers.{0…125}`, `q_proj.weight`.
  std::vector<Outline> members;  // None: tensors, which are
  std::vector<const Tensor*> tensors;  // all that stand here.
  int64_t count = 0, bytes = 0;        // Of all tensors here and below.
};

// The root, whose name is empty. Members stand in the order of their first tensors.
Outline OutlineOf(const std::vector<const Tensor*>& tensors);

// Views that are equal but for numbers, as one.
struct ViewOutline {
  const ViewOperation* operation = nullptr;  // Null: tensors as they are.
  std::string arguments;                     // ` axis=1`.
  int64_t copies = 1;                        // Operands of one view that stand here.
  std::vector<const Tensor*> tensors;        // The drawn ones.
  std::vector<ViewOutline> of;
};

// Of the tensors of one place in an outline, which have views.
ViewOutline OutlineOfViews(const std::vector<const Tensor*>& stored);
// `stack axis=1 of 126 × layers.{0…125}.w`.
std::string Describe(const ViewOutline& view);

// The distributions of the tensors of one place.
std::string DescribeValues(const std::vector<const Tensor*>& drawn);

}  // namespace shardinit
