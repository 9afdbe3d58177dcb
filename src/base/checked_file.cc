#include "base/checked_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/sha256.h"

namespace shardinit {
namespace {

constexpr int64_t kPiece = 1 << 20;  // bytes that are hashed at a time

void ReadOrThrow(const Fd& fd, void* out, int64_t size, int64_t offset, const std::string& path) {
  errno = 0;
  if (ReadAll(fd.get(), out, static_cast<size_t>(size), offset)) return;
  if (errno != 0) throw SystemError("read", path);
  throw Error(ExitCode::kWorld, fmt::format("`{}` ends before byte {}", path, offset + size),
              "leave it as it is while it is read");
}

}  // namespace

CheckedFile::CheckedFile(std::string path, int64_t size, std::string sha256, std::string place,
                         bool of_bools)
    : path_(std::move(path)),
      size_(size),
      sha256_(std::move(sha256)),
      place_(std::move(place)),
      of_bools_(of_bools) {
  struct stat info;
  if (stat(path_.c_str(), &info) == 0) AddInput(info);
}

Fd CheckedFile::Open(struct stat* info) const {
  // O_NONBLOCK keeps a FIFO that takes the file's place from blocking.
  Fd fd = OpenAt(AT_FDCWD, path_, O_RDONLY | O_NONBLOCK);
  if (!fd || fstat(fd.get(), info) != 0) throw SystemError("read", path_);
  return fd;
}

void CheckedFile::Check() const {
  const std::lock_guard lock(mutex_);
  if (checked_) return;
  const Fd fd = Open(&checked_info_);
  Sha256 hash;
  uint8_t largest = 0;
  std::vector<uint8_t> piece(static_cast<size_t>(std::min(kPiece, size_)));
  for (int64_t at = 0; at < size_; at += kPiece) {
    ThrowIfInterrupted();
    const int64_t size = std::min(kPiece, size_ - at);
    ReadOrThrow(fd, piece.data(), size, at, path_);
    hash.Update(piece.data(), static_cast<size_t>(size));
    if (of_bools_)
      largest = std::max(largest, *std::max_element(piece.begin(), piece.begin() + size));
  }
  const std::string found = ToHex(hash.Finish());
  if (found != sha256_) {
    throw Error(
        ExitCode::kUsage,
        fmt::format("`{}` has the SHA-256 {}, but {} asks for {}", path_, found, place_, sha256_),
        "bring back the file that the spec was written for, or name this one's SHA-256");
  }
  if (largest > 1) {
    throw Error(
        ExitCode::kUsage,
        fmt::format("`{}`, of {}, has a byte {}, but bool holds 0 and 1", path_, place_, largest),
        "give the tensor the `dtype` of these bytes");
  }
  checked_ = true;
}

CheckedFile::Reader::Reader(const CheckedFile& file) : file_(file) {
  file_.Check();
  struct stat info;
  fd_ = file_.Open(&info);
  if (AreUnchanged(info, file_.checked_info_)) return;
  throw Error(ExitCode::kWorld, fmt::format("`{}` was changed while it was read", file_.path_),
              "leave it as it is, and run the same command again");
}

void CheckedFile::Reader::Read(int64_t offset, int64_t size, void* out) const {
  ReadOrThrow(fd_, out, size, offset, file_.path_);
}

}  // namespace shardinit
