// Commands ask here for what is remarkable about a folder of tensors, and what of it they refuse.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "commands/options.h"

namespace shardinit {

// Tells what a user may not expect of a folder, and what in it is not the model. With
// `reads_values` that includes what has to be read: whether a head that a config ties to the
// embedding differs.
void SayFolder(const TensorFolder& folder, bool reads_values = true);

struct CopyOptions {
  std::string from, to;  // as given
  std::string part = {};
  bool may_be_inside = false;  // whether the copy may be in the folder
  std::vector<std::string> dropped = {};
  bool reads_values = true;
};

// Opens a folder of tensors to copy all of it, and says what a user may not expect of it. Throws
// Error (kRefused) if a tensor is not read and not dropped.
TensorFolder OpenToCopy(const CopyOptions& options);

// Says what decides the values of a copy beside its plan, so that ranks that are made from other
// bytes, or as others, never become one folder. `layout` is the one that the folder has.
std::string ClaimOf(const TensorFolder& from, const std::string& layout = {});

// Throws Error (kUsage) if options were given that change a spec, for a folder of tensors.
void RequireNoOverrides(const SpecOptions& spec);

}  // namespace shardinit
