#include "base/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/error.h"
#include "base/interrupt.h"

namespace shardinit {
namespace {

constexpr int64_t kLeastDirect = 65536;

}  // namespace

OutputFile::OutputFile(const Folder& folder, const std::string& name)
    : OutputFile(folder.PathOf(name), folder.Create(name)) {}

void OutputFile::Append(std::string_view text) {
  ThrowIfInterrupted();
  WriteText(text, size_);
  size_ += static_cast<int64_t>(text.size());
}

void OutputFile::Reserve(int64_t size) {
  AllocateSpace(fd(), size, path());
  // Empty if the file system refuses O_DIRECT (tmpfs, some overlays).
  direct_ = OpenAt(AT_FDCWD, fmt::format("/proc/self/fd/{}", fd()), O_WRONLY | O_DIRECT);
}

void OutputFile::Resize(int64_t size) {
  while (ftruncate(fd(), size) != 0) {
    if (errno != EINTR) throw SystemError("write", path());
  }
  size_ = size;
}

int64_t OutputFile::Write(const void* data, int64_t bytes, int64_t offset) const {
  const auto* const from = static_cast<const char*>(data);
  // Only whole pages of the file that are whole pages of memory go past the cache: padded ones
  // would overwrite the data around them.
  const int64_t head = std::min(bytes, (kDirectUnit - offset % kDirectUnit) % kDirectUnit);
  const bool is_aligned = reinterpret_cast<uintptr_t>(from + head) % kDirectUnit == 0;
  int64_t direct = direct_ && is_aligned ? (bytes - head) / kDirectUnit * kDirectUnit : 0;
  // The cache combines small writes. Past the cache, each would wait for the disk.
  if (bytes < kLeastDirect) direct = 0;
  if (direct > 0 &&
      !WriteAll(direct_.get(), from + head, static_cast<size_t>(direct), offset + head)) {
    if (errno != EINVAL) throw SystemError("write", path());
    direct = 0;  // the file system refuses it after all
  }
  const auto write_text = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    WriteText({from + begin, static_cast<size_t>(end - begin)}, offset + begin);
  };
  if (direct == 0) {
    write_text(0, bytes);
  } else {
    write_text(0, head);
    write_text(head + direct, bytes);
  }
  return direct;
}

void OutputFile::WriteText(std::string_view text, int64_t offset) const {
  if (!WriteAll(fd(), text.data(), text.size(), offset)) throw SystemError("write", path());
}

void OutputFile::Sync() {
  // On file systems such as sshfs, each descriptor has its own pending writes and errors. Syncing
  // one does not report errors of the other, but closing the other does. A signal does not prevent
  // the close.
  if (!direct_.Close() && errno != EINTR) throw SystemError("write", path());
  // Never retry a failed sync on the same descriptor: the kernel reports lost pages once and then
  // treats them as clean.
  if (!SyncData(fd())) throw SystemError("write", path());
}

}  // namespace shardinit
