// Reads a folder under the names of a plan where its own names nearly match: with what wrappers of
// modules add, old names, buffers, tied copies, or a tensor for each layer.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/folder.h"

namespace shardinit {

// Gives the tensors of the folder the names of `plan` if all of them then fit, and changes nothing
// otherwise. Returns sentences that say what was changed. Throws Error (kUsage) if all would fit
// but for a tied tensor that has other values than the one that it repeats.
std::vector<std::string> FitNames(const Plan& plan, TensorFolder* folder);

}  // namespace shardinit
