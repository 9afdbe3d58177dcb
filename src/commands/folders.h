// Warns about surprises in folders of tensors, and rejects the folders that commands cannot use.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "commands/options.h"

namespace shardinit {

// Warns about surprises in a folder, and lists its contents that are not part of the model. With
// `reads_values`, also reads values: a head may differ from the embedding that a config ties it to.
void SayFolder(const TensorFolder& folder, bool reads_values = true);

struct CopyOptions {
  std::string from, to;  // as given
  std::string part = {};
  bool may_be_source = false;  // whether `to` may be `from` itself
  std::vector<std::string> dropped = {};
  bool reads_values = true;
};

// Opens a folder of tensors to copy all of it, and warns about surprises. Throws Error (kRefused)
// if a tensor is neither read nor dropped.
TensorFolder OpenToCopy(const CopyOptions& options);

// Applies `--mesh` and `--sharding` to the plan of a folder, which messages call `name`. `uneven`
// is as in a spec, or empty. `hint_for_uneven` explains how to allow uneven parts.
Plan ShardFolder(const SpecRequest& request, const Plan& plan, const std::string& name,
                 const std::string& uneven, const std::string& hint_for_uneven);

// Throws Error (kUsage) if options that change a spec are given for a folder of tensors.
void RequireNoOverrides(const SpecOptions& spec);

}  // namespace shardinit
