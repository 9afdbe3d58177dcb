#include "base/checked_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"

namespace shardinit {
namespace {

uint8_t LargestByte(std::string_view bytes) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(bytes.data());
  return *std::max_element(begin, begin + bytes.size());
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
  if (LookAt(path_, &info)) AddInput(info, path_);
}

Fd CheckedFile::Open(struct stat* info) const {
  // O_NONBLOCK avoids blocking on a FIFO that has replaced the file.
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
  ReadRange(fd.get(), path_, 0, size_, [&](std::string_view piece) {
    hash.Update(piece);
    if (of_bools_) largest = std::max(largest, LargestByte(piece));
  });
  const std::string found = ToHex(hash.Finish());
  if (found != sha256_) {
    throw Usage(
        fmt::format("`{}` has the SHA-256 {}, but {} asks for {}", path_, found, place_, sha256_),
        "restore the file that the spec was written for, or update the SHA-256");
  }
  if (largest > 1) {
    throw Usage(
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
              "stop what changes it, and run the same command again");
}

void CheckedFile::Reader::Read(int64_t offset, int64_t size, void* out) const {
  ReadExactly(fd_.get(), file_.path_, out, static_cast<size_t>(size), offset);
}

}  // namespace shardinit
