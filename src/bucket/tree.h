// Lists the objects below a URL once, for commands that read them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "bucket/store.h"

namespace shardinit {

// All URLs must be the tree's or below it. Thread-safe.
class BucketTree {
 public:
  // Returns the tree of a URL, or an earlier one of a parent folder. It is listed once and kept
  // until the process ends. So nobody reads a replaced object, or parts of one from before and
  // after the change. Throws Error (kWorld).
  static BucketTree& Of(const std::string& url);

  // Returns null if the object does not exist.
  const ObjectInfo* Find(std::string_view url) const;
  // Returns whether there are objects below the URL.
  bool IsFolder(std::string_view url) const;
  // Calls `visit` with each name below the URL, such as `a/b`, ascending. Enters the folders for
  // which `visit` returns true.
  void Walk(std::string_view url,
            const std::function<bool(const std::string& name, bool is_folder)>& visit) const;
  // Returns bytes of an existing object. Throws Error (kWorld), for example if it has changed.
  std::string Read(std::string_view url, int64_t offset, int64_t bytes);

 private:
  explicit BucketTree(const BucketUrl& url);
  std::string KeyOf(std::string_view url) const;
  void WalkBelow(const std::string& folder, const std::string& prefix,
                 const std::function<bool(const std::string& name, bool is_folder)>& visit) const;

  Store store_;  // the whole bucket
  const std::string url_;
  const std::string root_;                     // the key of the tree; empty: the whole bucket
  std::map<std::string, ObjectInfo> objects_;  // by key
};

}  // namespace shardinit
