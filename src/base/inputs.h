// Remembers the files that this process has read for its user, which no result may replace.
#pragma once

#include <sys/stat.h>

namespace shardinit {

// Makes AddInput remember inputs from now on. The library, which writes nothing, never calls this:
// it keeps nothing between calls.
void RememberInputs();

// Files are known by device and inode, so by all their names. Safe to use from several threads.
void AddInput(const struct stat& file);
bool IsInput(const struct stat& file);

}  // namespace shardinit
