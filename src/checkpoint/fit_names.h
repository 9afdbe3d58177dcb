// Renames the tensors of a folder to the names of a plan if they nearly match. Handles prefixes of
// module wrappers, old names, buffers, tied copies, and one tensor for each layer.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/folder.h"

namespace shardinit {

// Returns the folder with the names of `plan` if all its tensors then fit, and unchanged otherwise.
// Sets `*changes` to sentences that describe the changes, if any. Throws Error (kUsage) if all
// would fit except a tied tensor whose values differ from the tensor that it repeats.
TensorFolder FitNames(const Plan& plan, TensorFolder folder, std::vector<std::string>* changes);

}  // namespace shardinit
