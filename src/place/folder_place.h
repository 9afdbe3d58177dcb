// Implements Place for a folder on disk.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/folder.h"
#include "place/place.h"

namespace shardinit {

class FolderPlace : public Place {
 public:
  static constexpr PlaceTraits kTraits = {.is_remote = false, .lists_all = true, .removes = true};

  // Keeps the folder open, so that all names refer to the same folder even if its path changes.
  explicit FolderPlace(const std::string& path);
  // A private folder is invisible to others until it is complete. Its files have their final names
  // from the beginning. The names are on disk after Sync() of their folders.
  enum Kind { kShared, kPrivate };
  explicit FolderPlace(std::shared_ptr<const Folder> root, Kind kind = kShared);

  void RequireFolder(std::string_view wanted) const override;
  std::string_view Open(const std::string& name, std::unique_ptr<PlaceFile>* file) const override;
  std::string_view Read(const std::string& name, size_t limit, std::string* text) const override;
  bool Exists(const std::string& name) const override;
  int64_t SizeOf(const std::string& name) const override;
  void List(const std::string& folder,
            const std::function<Next(const PlaceEntry& entry)>& visit) const override;
  std::unique_ptr<NewPlaceFile> Begin(FileOutline outline,
                                      const std::vector<uint32_t>* crcs) const override;
  bool PutNew(const std::string& name, std::string_view text) const override;
  void Put(const std::string& name, const TextWriter& text,
           const std::function<void()>& before_name) const override;
  void Remove(const std::string& name) const override;
  void Sync(const std::string& folder) const override;

 private:
  std::shared_ptr<const Folder> Parent(const std::string& name) const;
  std::shared_ptr<const Folder> ParentToWrite(const std::string& name) const;
  std::shared_ptr<const Folder> OpenSub(const std::string& name) const;

  std::shared_ptr<const Folder> root_;
  const Kind kind_ = kShared;
  mutable std::mutex mutex_;
  // Caches the last folder: callers mostly read files folder by folder.
  mutable std::string last_name_;
  mutable std::shared_ptr<const Folder> last_;
};

}  // namespace shardinit
