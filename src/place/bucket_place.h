// Implements Place for a folder in a bucket. Its subfolders are the common prefixes of object
// names.
#pragma once

#include <memory>
#include <string>

#include "bucket/store.h"
#include "place/place.h"

namespace shardinit {

class BucketPlace : public Place {
 public:
  static constexpr PlaceTraits kTraits = {.is_remote = true, .lists_all = false, .removes = false};

  explicit BucketPlace(const std::string& url);

  Store& store() const { return store_; }

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
  mutable Store store_;
};

}  // namespace shardinit
