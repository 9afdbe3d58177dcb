// The pass that stores drawn tensors as the views of a layout.
#pragma once

#include <memory>
#include <vector>

#include "graph/building.h"
#include "graph/stored/view_binder.h"

namespace shardinit {

// Returns the layout's tensors, sharded over the mesh and padded. `paddings` are for drawn tensors;
// kept and stacked tensors inherit them. `building` is for this layout only. `budget` is the number
// of pieces that it may still use.
WrittenTensors StoreLayout(const Named<LayoutSpec>& layout, const Mesh& mesh,
                           const std::shared_ptr<const std::vector<Tensor>>& drawn,
                           const Paddings& paddings, Building& building, PieceBudget* budget);

// Defines `mesh_AXIS`, because some layouts depend on how many ranks share a tensor.
void DefineMeshSizes(const Mesh& mesh, SpecScope* names);

}  // namespace shardinit
