// The pass for `uneven: pad`: what is stored is longer than what is drawn along the dimensions that
// the mesh does not divide, so that all parts of a tensor are equal.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/building.h"

namespace shardinit {

// The layout's name where nothing but padding tells what is stored from what is drawn.
inline constexpr std::string_view kPaddedLayout = "padded";

// Whether it is what is drawn that is stored, each tensor under its own path, and some padded.
bool IsPadded(const InitGraph& graph);

// Each drawn tensor as it is, to be stored.
std::vector<Tensor> StoredAsDrawn(std::shared_ptr<const std::vector<Tensor>> drawn);

// Pads views along the dimensions whose axes do not divide them, at their ends, up to the next size
// that they divide. One padding for each tensor. Reports what cannot be.
void PadTensors(const Mesh& mesh, const std::vector<std::optional<Padding>>& paddings,
                std::vector<Tensor>* stored, Diagnostics& diagnostics);

}  // namespace shardinit
