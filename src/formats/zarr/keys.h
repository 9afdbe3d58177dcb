// Finds the values of zarr keys in the files of a folder or in an OCDBT database.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/frame.h"

namespace shardinit::zarr {

// The names of the files that describe an array in zarr 2 and in zarr 3.
inline constexpr std::string_view kDescription2 = ".zarray", kDescription3 = "zarr.json";

class Keys {
 public:
  // Throws Error: kRefused if a database is damaged, kWorld if the folder or the database cannot be
  // read.
  explicit Keys(const std::string& folder);

  // Returns whether the values are in an OCDBT database.
  bool is_database() const { return database_.has_value(); }
  // Returns the names of arrays, ascending: their keys without `/.zarray` or `/zarr.json`. In a
  // folder, these are the arrays directly in it, and the `listed` names that exist.
  std::vector<std::string> ArrayNames(const std::vector<std::string>& listed) const;
  // Returns nullopt if the key does not exist.
  std::optional<Extent> Find(const std::string& key) const;

 private:
  const std::string folder_;
  std::optional<std::map<std::string, Extent>> database_;
};

}  // namespace shardinit::zarr
