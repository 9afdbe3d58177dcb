// Compares two folders of tensors: names, types, shapes and, on request, all elements.
#pragma once

#include <string>

#include "base/error.h"
#include "commands/options.h"

namespace shardinit {

struct FolderDiff {
  std::string before, after, only, part;
  bool values, json;
};

// Prints the differences.
ExitCode DiffFolders(const FolderDiff& diff, const WorkOptions& work);

}  // namespace shardinit
