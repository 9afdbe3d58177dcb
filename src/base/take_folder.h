// New folders are made under another name, and take their own when they are complete.
#pragma once

#include <string>

#include "base/folder.h"

namespace shardinit {

// Removes a folder and all in it, never through a link. What cannot be removed stays, and so do the
// folders above it.
void RemoveTree(const Folder& parent, const std::string& name);

// Renames `from` in `folder` to the name of `path`, which is in `parent`. Returns false if that is
// taken: a folder replaces no more than an empty folder. Throws Error (kWorld) if what has taken it
// cannot be seen.
bool TakeFolderName(const Folder& folder, const std::string& from, const Folder& parent,
                    const std::string& path);

// Returns `path` without slashes at its end; it must be a name that a new folder can take.
std::string PathToTake(const std::string& path);

}  // namespace shardinit
