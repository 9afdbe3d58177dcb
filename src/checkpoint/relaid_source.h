// Gives the tensors of a source the names and shapes of its model's spec, whatever the folder's
// layout.
#pragma once

#include <memory>

#include "tensor/source.h"

namespace shardinit {

// Returns `stored` in the layout of the spec. `stored` has the tensors as they are in files; the
// request names their layout and the spec. Padding of stored tensors is left out.
//
// Throws Error (kUsage) if the folder does not match the layout, and InvalidSpec if the spec of the
// source is wrong.
std::shared_ptr<const SourceFolder> InLayoutOfSpec(
    const SourceRequest& request, const std::shared_ptr<const SourceFolder>& stored);

}  // namespace shardinit
