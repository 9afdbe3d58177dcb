// Reads a folder under the names of a plan where its own names nearly match: with what wrappers of
// modules add, old names, buffers, tied copies, or a tensor for each layer.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/folder.h"

namespace shardinit {

// Returns the folder with the names of `plan` if all of its tensors then fit, and unchanged
// otherwise. Adds sentences that say what was changed. Throws Error (kUsage) if all would fit but
// for a tied tensor that has other values than the one that it repeats.
TensorFolder FitNames(const Plan& plan, TensorFolder folder, std::vector<std::string>* changes);

}  // namespace shardinit
