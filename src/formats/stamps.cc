#include "formats/stamps.h"

#include <fmt/format.h>

#include "base/file.h"
#include "base/folder.h"
#include "bucket/tree.h"
#include "bucket/url.h"

namespace shardinit {
namespace {

// Stats each file below a folder; follows links.
void StatFiles(const std::string& path, std::map<std::string, struct stat>* files) {
  struct stat info;
  if (!IsFolder(path)) {
    if (LookAt(path, &info)) files->emplace(path, info);
    return;
  }
  Walk(path, [&](const std::string& name, NameKind kind) {
    if (kind == NameKind::kFolder) return true;
    const std::string file = path + "/" + name;
    if (LookAt(file, &info)) files->emplace(file, info);
    return false;
  });
}

// Returns a digest of the names, sizes and ETags of the objects below a URL.
Digest IdentifyObjects(const std::string& url) {
  Sha256 hash;
  const auto add = [&](const std::string& name, const ObjectInfo& info) {
    hash.Update(fmt::format("{} {} {}\n", name, info.size, info.etag));
  };
  const BucketTree& tree = BucketTree::Of(url);
  if (const ObjectInfo* const object = tree.Find(url)) add(NameOf(url), *object);
  tree.Walk(url, [&](const std::string& name, bool is_folder) {
    if (!is_folder) add(name, *tree.Find(url + "/" + name));
    return true;
  });
  return hash.Finish();
}

}  // namespace

InputStamps::InputStamps(const std::string& path) : path_(path), is_remote_(IsUrl(path)) {
  if (!is_remote_) StatFiles(path, &files_);
}

Digest InputStamps::Identify() const {
  if (is_remote_) return IdentifyObjects(path_);
  Sha256 hash;
  for (const auto& [file, info] : files_) {
    hash.Update(fmt::format("{} {} {} {} {} {} {}\n", file, info.st_ino, info.st_size,
                            info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                            info.st_ctim.tv_nsec));
  }
  return hash.Finish();
}

Digest InputStamps::IdentifyAnywhere() const {
  if (is_remote_) return IdentifyObjects(path_);
  Sha256 hash;
  for (const auto& [file, info] : files_) {
    hash.Update(fmt::format("{} {} {} {}\n",
                            IsFolder(path_) ? file.substr(path_.size()) : NameOf(file),
                            info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec));
  }
  return hash.Finish();
}

bool InputStamps::IsUnchanged(const std::string& file) const {
  if (is_remote_) return true;
  struct stat now;
  const auto then = files_.find(file);
  return then != files_.end() && LookAt(file, &now) && AreUnchanged(then->second, now);
}

}  // namespace shardinit
