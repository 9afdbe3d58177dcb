#include "formats/zarr/keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/input.h"
#include "formats/zarr/ocdbt.h"

namespace shardinit::zarr {

Keys::Keys(const std::string& folder) : folder_(folder) {
  if (InputExists(folder + "/" + kOcdbtManifest)) database_ = ReadOcdbt(folder);
}

std::vector<std::string> Keys::ArrayNames(const std::vector<std::string>& listed) const {
  std::vector<std::string> names;
  if (database_) {
    for (const auto& [key, value] : *database_) {
      const size_t slash = key.rfind('/');
      if (slash == key.npos || slash == 0) continue;
      const std::string_view file = std::string_view(key).substr(slash + 1);
      if (file == kDescription2 || file == kDescription3) names.push_back(key.substr(0, slash));
    }
  } else {
    names = NamesIn(folder_);
    names.insert(names.end(), listed.begin(), listed.end());
    std::erase_if(names, [&](const std::string& name) {
      return !Find(fmt::format("{}/{}", name, kDescription2)) &&
             !Find(fmt::format("{}/{}", name, kDescription3));
    });
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::optional<Extent> Keys::Find(const std::string& key) const {
  if (database_) {
    const auto found = database_->find(key);
    return found == database_->end() ? std::nullopt : std::optional(found->second);
  }
  const std::string path = folder_ + "/" + key;
  const int64_t bytes = InputSize(path);
  if (bytes < 0) return std::nullopt;
  return Extent{path, 0, bytes};
}

}  // namespace shardinit::zarr
