#include "base/take_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/error.h"

namespace shardinit {

void RemoveTree(const Folder& parent, const std::string& name) {
  {
    const Folder folder = parent.OpenSub(name);
    std::vector<std::string> inside;
    folder.ForEachName([&](const std::string& other) { inside.push_back(other); });
    for (const std::string& other : inside) {
      if (unlinkat(folder.fd(), other.c_str(), 0) != 0 && errno == EISDIR) {
        RemoveTree(folder, other);
      }
    }
  }
  unlinkat(parent.fd(), name.c_str(), AT_REMOVEDIR);
}

bool TakeFolderName(const Folder& folder, const std::string& from, const Folder& parent,
                    const std::string& path) {
  if (renameat(folder.fd(), from.c_str(), parent.fd(), NameOf(path).c_str()) != 0) {
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) {
      throw SystemError("create", path);
    }
    parent.AwaitTaken(NameOf(path));
    return false;
  }
  parent.Sync();
  return true;
}

std::string PathToTake(const std::string& path) {
  std::string plain = path.substr(0, path.find_last_not_of('/') + 1);
  const std::string name = NameOf(plain);
  if (name.empty() || name == "." || name == "..") {
    throw Usage(fmt::format("`{}` is not the name of a new folder", path), "name one with `-o`");
  }
  struct stat info;
  if (lstat(plain.c_str(), &info) == 0) {
    if (S_ISLNK(info.st_mode)) throw Conflict(fmt::format("`{}` is a link", plain));
  } else if (errno != ENOENT && errno != ENOTDIR) {
    throw SystemError("read", plain);
  }
  return plain;
}

}  // namespace shardinit
