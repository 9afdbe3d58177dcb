#include "base/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/interrupt.h"

namespace shardinit {

OutputFile::OutputFile(const Folder& folder, const std::string& name)
    : OutputFile(folder.PathOf(name), folder.Create(name)) {}

void OutputFile::Append(std::string_view text) {
  ThrowIfInterrupted();
  WriteText(text, size_);
  size_ += static_cast<int64_t>(text.size());
}

void OutputFile::Reserve(int64_t size) {
  AllocateSpace(fd(), size, path());
  // None where the file system refuses that (tmpfs, some overlays).
  direct_ = OpenAt(AT_FDCWD, fmt::format("/proc/self/fd/{}", fd()), O_WRONLY | O_DIRECT);
}

void OutputFile::Resize(int64_t size) {
  while (ftruncate(fd(), size) != 0) {
    if (errno != EINTR) throw SystemError("write", path());
  }
  size_ = size;
}

int64_t OutputFile::Write(const void* data, int64_t bytes, int64_t offset) const {
  int64_t direct = 0;
  // Only whole pages: a padded tail would overwrite what lies behind.
  if (direct_ && offset % kDirectUnit == 0) {
    direct = bytes / kDirectUnit * kDirectUnit;
    if (direct > 0 && !WriteAll(direct_.get(), data, static_cast<size_t>(direct), offset)) {
      if (errno != EINVAL) throw SystemError("write", path());
      direct = 0;  // This file system refuses it after all.
    }
  }
  if (direct < bytes) {
    WriteText({static_cast<const char*>(data) + direct, static_cast<size_t>(bytes - direct)},
              offset + direct);
  }
  return direct;
}

void OutputFile::WriteText(std::string_view text, int64_t offset) const {
  if (!WriteAll(fd(), text.data(), text.size(), offset)) throw SystemError("write", path());
}

void OutputFile::Sync() {
  // A failed sync must not be tried again on the same descriptor: the kernel
  // reports lost pages once and then calls them clean.
  if (!SyncData(fd())) throw SystemError("write", path());
}

}  // namespace shardinit
