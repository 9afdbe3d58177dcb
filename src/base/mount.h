// Finds the file system that a path is on, in the kernel's list of mounts.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace shardinit {

struct Mount {
  std::string place;   // the mount point
  std::string type;    // such as `ext4` or `fuse.rclone`
  std::string source;  // the mounted device or store
};

// Finds a file system by its device in `mountinfo`, the text of /proc/self/mountinfo.
std::optional<Mount> FindMount(std::string_view mountinfo, dev_t device);

// Returns whether a mount shows the objects of a store as files.
bool IsOfObjectStore(const Mount& mount);

// Throws Error (kUsage) if `folder`, or its nearest existing parent, is in a mounted bucket of an
// object store. There, files may appear late or replace other files.
void RequireNoBucketMount(const std::string& folder);

}  // namespace shardinit
