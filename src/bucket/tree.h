// The objects below a URL as they were when they were listed, for commands that read them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "bucket/store.h"

namespace shardinit {

// Every URL that its functions take is the tree's or lies below it. Safe to use from several
// threads.
class BucketTree {
 public:
  // Returns the tree of a URL, or the one of a folder above it that was asked for before. It is
  // listed once and lives as long as the process: nobody reads an object that was replaced since,
  // or one part of it from before and another from after. Throws Error (kWorld).
  static BucketTree& Of(const std::string& url);

  // Returns null if there is no such object.
  const ObjectInfo* Find(std::string_view url) const;
  // Tells whether there are objects below.
  bool IsFolder(std::string_view url) const;
  // Calls `visit` with each name below, such as `a/b`, ascending, and goes on into those folders
  // for which it returns true.
  void Walk(std::string_view url,
            const std::function<bool(const std::string& name, bool is_folder)>& visit) const;
  // Returns bytes of an object that is there. Throws Error (kWorld), also if it has changed.
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
