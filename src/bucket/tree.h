// Lists the objects or files below a URL once, to read them.
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
  using Objects = std::map<std::string, ObjectInfo>;  // by key
  // Returns these bytes of an object. Throws Error (kWorld).
  using ReadRange = std::function<std::string(const std::string& key, const ObjectInfo& object,
                                              int64_t offset, int64_t bytes)>;

  // The objects of a URL of the tree begin with `base`, then `/` and their keys.
  struct Parts {
    std::string base;
    std::string root;  // the key of the tree; empty: all keys
    Objects objects;
    ReadRange read;
  };

  // Returns the tree of a URL, or an earlier one of a parent folder. It is listed once and kept
  // until the process ends. So nobody reads a replaced object, or parts of one from before and
  // after the change. Throws Error (kWorld).
  static BucketTree& Of(const std::string& url);
  // Adds a tree of objects that no bucket has, and returns its URL.
  static std::string Add(Objects objects, ReadRange read);
  static void Remove(const std::string& url);

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
  explicit BucketTree(Parts parts);
  std::string KeyOf(std::string_view url) const;
  void WalkBelow(const std::string& folder, const std::string& prefix,
                 const std::function<bool(const std::string& name, bool is_folder)>& visit) const;

  const Parts parts_;
  const std::string url_;
  std::string asked_;  // the URL that Of() listed
};

}  // namespace shardinit
