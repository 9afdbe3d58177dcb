// A folder on the disk.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/folder.h"
#include "place/place.h"

namespace shardinit {

class FolderPlace : public Place {
 public:
  // Keeps the folder open, so that all names are looked up in the same folder even if its path
  // changes.
  explicit FolderPlace(const std::string& path);
  explicit FolderPlace(std::shared_ptr<const Folder> root);

  void RequireFolder(std::string_view wanted) const override;
  std::string_view Open(const std::string& name, std::unique_ptr<PlaceFile>* file) const override;
  std::string_view Read(const std::string& name, size_t limit, std::string* text) const override;
  bool Exists(const std::string& name) const override;
  int64_t SizeOf(const std::string& name) const override;
  void List(const std::string& folder,
            const std::function<Next(const PlaceEntry& entry)>& visit) const override;

 private:
  std::shared_ptr<const Folder> Parent(const std::string& name) const;
  std::shared_ptr<const Folder> OpenSub(const std::string& name) const;

  std::shared_ptr<const Folder> root_;
  mutable std::mutex mutex_;
  // Caches the last folder: callers mostly read files folder by folder.
  mutable std::string last_name_;
  mutable std::shared_ptr<const Folder> last_;
};

}  // namespace shardinit
