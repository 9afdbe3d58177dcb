#include "export/intact.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "export/export.h"
#include "export/record.h"
#include "manifest/manifest.h"

namespace shardinit {

VerifyResult VerifyExport(const std::string& folder, int jobs,
                          const std::function<void(int64_t bytes, int64_t total)>& progress) {
  const std::string record = folder + "/" + kExportName;
  const std::vector<RecordedFile> files = ReadRecord(ReadFile(record, kManifestLimit), record);
  VerifyResult result;
  int64_t total = 0;
  for (const RecordedFile& file : files)
    total += std::max<int64_t>(0, FileSize(folder + "/" + file.path));

  std::mutex mutex;
  std::atomic<int64_t> hashed{0};
  for (const RecordedFile& file : files) {
    const std::string path = folder + "/" + file.path;
    const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd && errno != ENOENT && errno != ENOTDIR) throw SystemError("read", path);
    const int64_t size = FileSize(path);
    if (!fd || size < 0) {
      result.findings.push_back({file.path, "", "is missing"});
    } else if (size != file.size) {
      result.findings.push_back(
          {file.path, "", fmt::format("has {} bytes, but the record says {}", size, file.size)});
    } else {
      ParallelFor(static_cast<int64_t>(file.parts.size()), jobs, [&](int64_t i) {
        const RecordedFile::Part& part = file.parts[static_cast<size_t>(i)];
        const Digest digest =
            HashRange(fd.get(), path, part.offset, part.bytes, [&](int64_t bytes) {
              hashed += bytes;
              if (progress) progress(hashed, total);
            });
        if (digest == part.digest) return;
        const std::lock_guard lock(mutex);
        result.findings.push_back(
            {file.path, part.tensor,
             fmt::format("has other data than was written (bytes {} to {} of the file)",
                         part.offset, part.offset + part.bytes - 1)});
      });
      result.boxes += static_cast<int64_t>(file.parts.size()) - 1;
      result.bytes += file.size;
      ++result.files;
    }
  }
  std::sort(result.findings.begin(), result.findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.file, a.tensor, a.message) < std::tie(b.file, b.tensor, b.message);
  });
  return result;
}

}  // namespace shardinit
