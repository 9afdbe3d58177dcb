// The pass for `uneven: pad`. It lengthens stored tensors along dimensions that the mesh does not
// divide, so that all shards of a tensor are equal.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "graph/building.h"

namespace shardinit {

// The layout's name if stored tensors differ from drawn ones only by padding.
inline constexpr std::string_view kPaddedLayout = "padded";

// Returns whether each drawn tensor is stored under its own path and some are padded.
bool IsPadded(const InitGraph& graph);

// Returns each drawn tensor unchanged, as a stored tensor.
std::vector<Tensor> StoredAsDrawn(const std::shared_ptr<const std::vector<Tensor>>& drawn);

// Pads views at the end of each dimension that its mesh axes do not divide, up to the next size
// that they divide. Reports tensors that cannot be padded.
void PadTensors(const Mesh& mesh, const Paddings& paddings, std::vector<Tensor>* stored,
                Diagnostics& diagnostics);

}  // namespace shardinit
