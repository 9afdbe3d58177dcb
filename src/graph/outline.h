// Outlines the tensors of a graph as a tree of modules. Modules and tensors that differ only in
// numbers, such as the layers of a model, appear once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/stored/view.h"

namespace shardinit {

struct Outline {
  std::string name;              // relative to its parent: `layers.{0…125}`, `q_proj.weight`
  std::vector<Outline> members;  // empty if there are tensors at this place
  std::vector<const Tensor*> tensors;  // all tensors at this place
  int64_t count = 0, bytes = 0;        // of all tensors here and below
};

// Returns the root, whose name is empty. Members are in the order of their first tensors.
Outline OutlineOf(const std::vector<const Tensor*>& tensors);

// Views that differ only in numbers, merged into one.
struct ViewOutline {
  const ViewOperation* operation = nullptr;  // null: the tensors as they are
  std::string arguments;                     // such as ` axis=1`
  int64_t copies = 1;                        // operands of one view that are merged here
  std::vector<const Tensor*> tensors;        // drawn tensors
  std::vector<ViewOutline> of;
};

// Merges the tensors of one place in an outline. They must have views.
ViewOutline OutlineOfViews(const std::vector<const Tensor*>& stored);
// Returns text such as `stack axis=1 of 126 × layers.{0…125}.w`.
std::string Describe(const ViewOutline& view);

std::string DescribeValues(const std::vector<const Tensor*>& drawn);

}  // namespace shardinit
