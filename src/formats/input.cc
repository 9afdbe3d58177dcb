#include "formats/input.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "bucket/url.h"

namespace shardinit {
namespace {

constexpr int64_t kMostAtOnce = 16 << 20;  // the most bytes that one request asks for

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  if (!IsUrl(path_)) {
    fd_ = OpenToRead(path_);
    return;
  }
  tree_ = &BucketTree::Of(path_);
  const ObjectInfo* const object = tree_->Find(path_);
  if (object == nullptr) {
    throw Error(ExitCode::kWorld, fmt::format("there is no object `{}`", path_));
  }
  object_bytes_ = object->size;
}

int64_t InputFile::size() const {
  if (tree_ != nullptr) return object_bytes_;
  struct stat info;
  if (fstat(fd_.get(), &info) != 0) throw SystemError("read", path_);
  return info.st_size;
}

bool InputFile::TryRead(int64_t offset, int64_t bytes, void* out) const {
  if (tree_ == nullptr) {
    errno = 0;
    if (ReadAll(fd_.get(), out, static_cast<size_t>(bytes), offset)) return true;
    if (errno != 0) throw SystemError("read", path_);
    return false;
  }
  if (offset > object_bytes_ || bytes > object_bytes_ - offset) return false;
  for (auto* to = static_cast<char*>(out); bytes > 0;) {
    const std::string part = tree_->Read(path_, offset, std::min(bytes, kMostAtOnce));
    memcpy(to, part.data(), part.size());
    to += part.size();
    offset += std::ssize(part);
    bytes -= std::ssize(part);
  }
  return true;
}

void InputFile::Read(int64_t offset, int64_t bytes, void* out) const {
  if (TryRead(offset, bytes, out)) return;
  throw Error(ExitCode::kWorld, fmt::format("`{}` ends before byte {}", path_, offset + bytes),
              "do not change it while it is read");
}

bool InputExists(const std::string& path) {
  if (!IsUrl(path)) return Exists(path);
  const BucketTree& tree = BucketTree::Of(path);
  return tree.Find(path) != nullptr || tree.IsFolder(path);
}

bool IsInputFolder(const std::string& path) {
  return IsUrl(path) ? BucketTree::Of(path).IsFolder(path) : IsFolder(path);
}

int64_t InputSize(const std::string& path) {
  if (!IsUrl(path)) return FileSize(path);
  const ObjectInfo* const object = BucketTree::Of(path).Find(path);
  return object == nullptr ? -1 : object->size;
}

std::string ReadInput(const std::string& path, size_t limit) {
  if (!IsUrl(path)) return ReadFile(path, limit);
  const InputFile file(path);
  if (static_cast<uint64_t>(file.size()) > limit) ThrowTooLarge(path, limit);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.Read(0, file.size(), text.data());
  return text;
}

bool ReadInputIfExists(const std::string& path, size_t limit, std::string* text) {
  if (!InputExists(path)) return false;
  *text = ReadInput(path, limit);
  return true;
}

void WalkInput(const std::string& folder,
               const std::function<bool(const std::string& name, NameKind kind)>& visit) {
  if (!IsUrl(folder)) return Walk(folder, visit);
  BucketTree::Of(folder).Walk(folder, [&](const std::string& name, bool is_folder) {
    return visit(name, is_folder ? NameKind::kFolder : NameKind::kFile);
  });
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  WalkInput(folder, [&](const std::string& name, NameKind) {
    names.push_back(name);
    return false;
  });
  std::sort(names.begin(), names.end());
  // A bucket may have both `x` and `x/y`.
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace shardinit
