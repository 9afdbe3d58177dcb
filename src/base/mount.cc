#include "base/mount.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace shardinit {
namespace {

// Decodes octal escapes: a space is `\040`.
std::string Unescaped(std::string_view field) {
  std::string text;
  for (size_t i = 0; i < field.size(); ++i) {
    const std::string_view digits = field.substr(i + 1, 3);
    const bool is_escape =
        field[i] == '\\' && digits.size() == 3 &&
        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '7'; });
    if (!is_escape) {
      text.push_back(field[i]);
      continue;
    }
    text.push_back(
        static_cast<char>((digits[0] - '0') << 6 | (digits[1] - '0') << 3 | (digits[2] - '0')));
    i += 3;
  }
  return text;
}

std::vector<std::string_view> Fields(std::string_view line) {
  std::vector<std::string_view> fields;
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    fields.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return fields;
}

}  // namespace

std::optional<Mount> FindMount(std::string_view mountinfo, dev_t device) {
  const std::string numbers = fmt::format("{}:{}", major(device), minor(device));
  while (!mountinfo.empty()) {
    const size_t end = std::min(mountinfo.find('\n'), mountinfo.size());
    const std::vector<std::string_view> fields = Fields(mountinfo.substr(0, end));
    mountinfo.remove_prefix(std::min(end + 1, mountinfo.size()));
    // The optional fields end with a hyphen.
    const auto hyphen = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 5 || fields.end() - hyphen < 3 || fields[2] != numbers) continue;
    return Mount{Unescaped(fields[4]), Unescaped(hyphen[1]), Unescaped(hyphen[2])};
  }
  return {};
}

bool IsOfObjectStore(const Mount& mount) {
  return mount.type == "fuse.rclone" || mount.type == "fuse.gcsfuse" || mount.type == "fuse.s3fs" ||
         mount.source == "mountpoint-s3";
}

void RequireNoBucketMount(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  struct stat info = {};
  while (stat(path.c_str(), &info) != 0) {
    if (path == path.parent_path()) return;
    path = path.parent_path();
  }
  const std::optional<Mount> mount = FindMount(ReadKernelFile("/proc/self/mountinfo"), info.st_dev);
  if (!mount || !IsOfObjectStore(*mount)) return;
  throw Usage(fmt::format("`{}` is in a mount of an object store (`{}` on `{}`): it may confirm "
                          "files before they are stored, and two runs could mix their files",
                          Escape(folder), Escape(mount->source), Escape(mount->place)),
              mount->type == "fuse.gcsfuse"
                  ? "write to a local folder, and copy that with the store's own tool"
                  : "if the store supports S3, give its URL, `-o s3://BUCKET/PREFIX`; otherwise "
                    "write to a local folder, and copy that with the store's own tool");
}

}  // namespace shardinit
