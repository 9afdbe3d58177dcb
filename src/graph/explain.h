// Explains one tensor: runs the passes once more for that tensor alone, and takes notes.
#pragma once

#include <memory>
#include <vector>

#include "graph/building.h"
#include "graph/explanation.h"

namespace shardinit {

// Explains the first drawn tensor that matches `explanation.pattern`. Also notes the first match
// that a `when` leaves out, unless it comes later. `graph` must be free of mistakes.
void ExplainDrawn(const ModelSpec& spec, const InitGraph& graph, Explanation* explanation);

// Does the same for a tensor that the layout stores.
void ExplainStored(const ModelSpec& spec, const LayoutSpec& layout, const Mesh& mesh,
                   const WrittenTensors& stored, std::shared_ptr<const std::vector<Tensor>> drawn,
                   Explanation* explanation);

// Notes where the layout puts the explained tensor.
void ExplainPlaces(const std::string& layout, const WrittenTensors& stored,
                   Explanation* explanation);

}  // namespace shardinit
