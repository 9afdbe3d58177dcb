// Compares two folders of tensors: names, types, shapes and, if that is wanted, all elements.
#pragma once

#include <string>

#include "base/error.h"
#include "commands/options.h"

namespace shardinit {

struct FolderDiff {
  std::string before, after, only, part;
  bool values, json;
};

// Prints what differs.
ExitCode DiffFolders(const FolderDiff& diff, const WorkOptions& work);

}  // namespace shardinit
