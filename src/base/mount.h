// The file systems that paths are on, as the kernel lists them.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace shardinit {

struct Mount {
  std::string place;   // the folder where it is mounted
  std::string type;    // as in `ext4` or `fuse.rclone`
  std::string source;  // what is mounted
};

// Finds a file system by its device in the text of /proc/self/mountinfo.
std::optional<Mount> FindMount(std::string_view mountinfo, dev_t device);

// Tells whether a mount shows the objects of a store as files.
bool IsOfObjectStore(const Mount& mount);

// Throws Error (kUsage) if `folder`, or the nearest folder above it that is there, is in a bucket
// of an object store that is mounted: a file may be there later than its writer believes, or
// replace another one.
void RequireNoBucketMount(const std::string& folder);

}  // namespace shardinit
