// The pass that stores what is drawn: a layout's views of it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "graph/building.h"
#include "graph/view_binder.h"

namespace shardinit {

// What the layout stores, cut over the mesh and padded; `paddings` are those of what is drawn, as
// it is kept. `building` is of this layout alone; `budget` is what
// it may still take.
WrittenTensors StoreLayout(const Named<LayoutSpec>& layout, const Mesh& mesh,
                           std::shared_ptr<const std::vector<Tensor>> drawn,
                           const std::vector<std::optional<Padding>>& paddings, Building& building,
                           PieceBudget* budget);

// `mesh_AXIS`: some layouts depend on how many ranks share a tensor.
void DefineMeshSizes(const Mesh& mesh, SpecScope* names);

}  // namespace shardinit
