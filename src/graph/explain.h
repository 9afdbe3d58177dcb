// Why one tensor is what it is: the passes once more, for that tensor alone, and taking notes.
#pragma once

#include <memory>
#include <vector>

#include "graph/building.h"
#include "graph/explanation.h"

namespace shardinit {

// Of the first drawn tensor that matches `explanation.pattern`, or of what would if a `when` did
// not leave it out. `drawn` has no mistake.
void ExplainDrawn(const ModelSpec& spec, const InitGraph& graph, Explanation* explanation);

// The same of a tensor that the layout stores.
void ExplainStored(const ModelSpec& spec, const LayoutSpec& layout, const Mesh& mesh,
                   const WrittenTensors& stored, std::shared_ptr<const std::vector<Tensor>> drawn,
                   Explanation* explanation);

// Where the layout puts the tensor that is explained.
void ExplainPlaces(const std::string& layout, const WrittenTensors& stored,
                   Explanation* explanation);

}  // namespace shardinit
