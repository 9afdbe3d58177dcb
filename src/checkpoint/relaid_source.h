// Gives the tensors of a source the names and shapes of its model's spec, whatever layout the
// folder has them in.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tensor/source.h"

namespace shardinit {

// `stored` has the tensors as they are stored, each in the file `file_of`; the request names the
// layout, and the spec. What only pads a stored tensor is in none of the model's.
//
// Throws Error (kUsage) if the folder is not stored as the layout says, and InvalidSpec if
// something is wrong with the spec of the source.
std::shared_ptr<const SourceFolder> InLayoutOfSpec(
    const SourceRequest& request, const std::shared_ptr<const SourceFolder>& stored,
    const std::function<std::string(const std::string& name)>& file_of);

}  // namespace shardinit
