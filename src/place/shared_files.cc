#include "place/shared_files.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "bucket/made_once.h"

namespace shardinit {
namespace {

constexpr char kDigestKey[] = "sha256";

bool IsEqual(const Place& place, const PlaceFile& there, const FileOutline& file,
             const Digest& sha256) {
  if (there.size() != file.size) return false;
  const auto marked = file.metadata.find(kDigestKey);
  if (marked != file.metadata.end() && there.Metadata(kDigestKey) == marked->second) return true;
  return HashFile(place, there, {}, kOneFile).rest == sha256;
}

}  // namespace

void PutOnce(const Place& place, const FileOutline& file, const Digest& sha256,
             const std::function<void()>& before_name) {
  FileOutline named = file;
  named.metadata[kDigestKey] = ToHex(sha256);
  for (int attempt = 0; attempt < kTriesAmongWriters; ++attempt) {
    std::unique_ptr<PlaceFile> there;
    if (!place.traits().removes && place.Open(file.path, &there).empty()) {
      if (IsEqual(place, *there, file, sha256)) return;
      throw Error(
          ExitCode::kConflict,
          fmt::format("`{}` already exists with different content", place.PathOf(file.path)),
          "objects are never replaced: remove it with the store's own tool if it is wrong, "
          "and run the same command again");
    }
    // Fails if another writer completed the file or ended the upload.
    if (place.Begin(named)->Complete(before_name)) return;
  }
  throw EndedByOthers(place.PathOf(file.path));
}

bool IsMade(const Place& place, const FileOutline& file, std::string_view whole) {
  std::unique_ptr<PlaceFile> there;
  if (place.traits().removes || !place.Open(file.path, &there).empty()) return false;
  const auto& [key, value] = *file.metadata.begin();
  const std::string owner = there->Metadata(key);
  if (owner == value && there->size() == file.size) return true;
  throw Error(ExitCode::kConflict,
              fmt::format("`{}` exists, and {}", place.PathOf(file.path),
                          owner.empty() ? fmt::format("no run of this {} wrote it", whole)
                          : there->size() != file.size
                              ? fmt::format("has {} bytes instead of {}", there->size(), file.size)
                              : fmt::format("belongs to another {}", whole)),
              "choose another folder with `-o`, or remove it with the store's own tool");
}

void RequireSameBytes(const Place& place, const FileOutline& file, const FileDigests& wanted) {
  std::unique_ptr<PlaceFile> there;
  if (place.Open(file.path, &there).empty() && there->size() == file.size) {
    const FileDigests found = HashFile(place, *there, file.boxes, kOneFile);
    if (found.parts == wanted.parts && found.rest == wanted.rest) return;
  }
  throw Error(
      ExitCode::kConflict,
      fmt::format("`{}` was made from sources with different elements", place.PathOf(file.path)),
      "make all files from the same source, in a new folder, and give its `digest` in the "
      "spec");
}

}  // namespace shardinit
