#include "base/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <memory>

#include "base/error.h"
#include "base/interrupt.h"

namespace shardinit {
namespace {

constexpr std::string_view kMissing = "is missing", kLink = "is a link to elsewhere",
                           kNoFile = "is not a file", kTooLarge = "is larger than any such file";

NameKind KindOf(int folder, const dirent* entry, const std::string& path) {
  switch (entry->d_type) {
    case DT_REG:
      return NameKind::kFile;
    case DT_DIR:
      return NameKind::kFolder;
    case DT_LNK:
      return NameKind::kLink;
    case DT_UNKNOWN:
      break;  // some file systems do not say
    default:
      return NameKind::kOther;
  }
  struct stat info;
  if (fstatat(folder, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
    throw SystemError("read", path);
  }
  return S_ISREG(info.st_mode)   ? NameKind::kFile
         : S_ISDIR(info.st_mode) ? NameKind::kFolder
         : S_ISLNK(info.st_mode) ? NameKind::kLink
                                 : NameKind::kOther;
}

void WalkBelow(const std::string& folder, const std::string& prefix,
               const std::function<bool(const std::string&, NameKind)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (!dir) throw SystemError("read the folder", folder);
  while (true) {
    ThrowIfInterrupted();
    errno = 0;
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr && errno != 0) throw SystemError("read the folder", folder);
    if (entry == nullptr) return;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string path = folder + "/" + entry->d_name;
    const NameKind kind = KindOf(dirfd(dir.get()), entry, path);
    if (visit(prefix + entry->d_name, kind) && kind == NameKind::kFolder) {
      WalkBelow(path, prefix + entry->d_name + "/", visit);
    }
  }
}

}  // namespace

void Walk(const std::string& folder,
          const std::function<bool(const std::string& name, NameKind kind)>& visit) {
  WalkBelow(folder, "", visit);
}

std::string_view OpenIfFile(const std::string& path, Fd* fd, int64_t* size) {
  // O_NONBLOCK keeps the opening of a FIFO from waiting for a writer.
  *fd = Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!*fd && (errno == ENOENT || errno == ENOTDIR)) return kMissing;
  if (!*fd && errno == ELOOP) return kLink;
  if (!*fd && errno == ENXIO) return kNoFile;  // a socket
  struct stat info;
  if (!*fd || fstat(fd->get(), &info) != 0) throw SystemError("read", path);
  if (!S_ISREG(info.st_mode)) return kNoFile;
  *size = info.st_size;
  return {};
}

std::string_view ReadIfFile(const std::string& path, size_t limit, std::string* text) {
  Fd fd;
  int64_t size = 0;
  if (const std::string_view wrong = OpenIfFile(path, &fd, &size); !wrong.empty()) return wrong;
  if (static_cast<uint64_t>(size) > limit) return kTooLarge;
  text->resize(static_cast<size_t>(size));
  if (!ReadAll(fd.get(), text->data(), text->size(), 0)) {
    throw SystemError("read", path, errno != 0 ? errno : EIO);
  }
  return {};
}

}  // namespace shardinit
