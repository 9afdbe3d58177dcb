// Gives new folders, made under another name, their final name when they are complete.
#pragma once

#include <string>

#include "base/folder.h"

namespace shardinit {

// Removes a folder and its contents, never through a link. Entries that cannot be removed stay, as
// do their parent folders.
void RemoveTree(const Folder& parent, const std::string& name);

// Moves `from` in `folder` to `path`, which is in `parent`. Returns false if that name is taken by
// anything but an empty folder. Throws Error (kWorld) if it is taken but the entry is not visible.
bool TakeFolderName(const Folder& folder, const std::string& from, const Folder& parent,
                    const std::string& path);

// Returns `path` without trailing slashes. Throws Error unless a new folder could have that name.
std::string PathToTake(const std::string& path);

}  // namespace shardinit
