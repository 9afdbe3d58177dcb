#include "place/place.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "bucket/url.h"
#include "place/bucket_place.h"
#include "place/folder_place.h"

namespace shardinit {

std::unique_ptr<Place> Place::At(const std::string& path) {
  if (IsBucketUrl(path)) return std::make_unique<BucketPlace>(path);
  if (IsUrl(path)) {
    throw Usage(
        fmt::format("`{}` has a checkpoint of shardinit, which is only read from folders and "
                    "buckets",
                    path),
        "download it, and use the copy");
  }
  return std::make_unique<FolderPlace>(path);
}

const PlaceTraits& Place::TraitsAt(const std::string& path) {
  return IsBucketUrl(path) ? BucketPlace::kTraits : FolderPlace::kTraits;
}

std::string Place::PathOf(std::string_view name) const { return fmt::format("{}/{}", path_, name); }

Readers SplitReaders(const Place& place, int64_t files, int jobs) {
  if (!place.traits().is_remote) return {1, jobs};
  const int side_by_side = static_cast<int>(std::clamp<int64_t>(files, 1, std::max(jobs, 1)));
  return {side_by_side, std::max(jobs / side_by_side, 1)};
}

}  // namespace shardinit
