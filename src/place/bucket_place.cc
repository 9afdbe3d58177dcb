#include "place/bucket_place.h"

#include <utility>

#include "base/error.h"
#include "bucket/made_once.h"
#include "place/object_writer.h"

namespace shardinit {
namespace {

class StoredFile : public PlaceFile {
 public:
  StoredFile(Store* store, std::string name, ObjectInfo info)
      : PlaceFile(info.size), store_(*store), name_(std::move(name)), info_(std::move(info)) {}

  std::string Metadata(const std::string& name) const override {
    const auto found = info_.metadata.find(name);
    return found == info_.metadata.end() ? std::string() : found->second;
  }

  void Read(int64_t offset, int64_t bytes, int at_once,
            const std::function<void(std::string_view piece)>& visit) const override {
    ReadObject(store_, name_, info_, offset, bytes, at_once, visit);
  }

 private:
  Store& store_;
  const std::string name_;
  const ObjectInfo info_;
};

// Returns whether a file or folder on disk could have this name.
bool IsPart(std::string_view part) { return !part.empty() && part != "." && part != ".."; }

}  // namespace

BucketPlace::BucketPlace(const std::string& url)
    : Place(ParseBucketUrl(url).text(), kTraits), store_(ParseBucketUrl(url)) {}

void BucketPlace::RequireFolder(std::string_view) const {}

std::string_view BucketPlace::Open(const std::string& name,
                                   std::unique_ptr<PlaceFile>* file) const {
  std::optional<ObjectInfo> info = store_.Head(name);
  if (!info) return kIsMissing;
  *file = std::make_unique<StoredFile>(&store_, name, *std::move(info));
  return {};
}

std::string_view BucketPlace::Read(const std::string& name, size_t limit, std::string* text) const {
  std::optional<std::string> there = store_.Get(name, limit);
  if (!there) return kIsMissing;
  *text = *std::move(there);
  return {};
}

bool BucketPlace::Exists(const std::string& name) const { return store_.Head(name).has_value(); }

int64_t BucketPlace::SizeOf(const std::string& name) const {
  const std::optional<ObjectInfo> info = store_.Head(name);
  return info ? info->size : -1;
}

void BucketPlace::List(const std::string& folder,
                       const std::function<Next(const PlaceEntry& entry)>& visit) const {
  const std::string begin = folder.empty() ? "" : folder + "/";
  std::string inside = begin;  // the folder that contains the last name
  std::string outside;         // a folder that the caller did not enter
  // Names ascend, so the names of a folder are adjacent.
  store_.List(begin, [&](const std::string& name, const ObjectInfo& info) {
    if (!outside.empty() && name.starts_with(outside)) return true;
    while (!name.starts_with(inside)) inside.erase(inside.rfind('/', inside.size() - 2) + 1);
    const std::string_view all = name;
    for (size_t slash; (slash = all.find('/', inside.size())) != all.npos;) {
      if (!IsPart(all.substr(inside.size(), slash - inside.size()))) break;
      const Next next = visit({all.substr(0, slash), NameKind::kFolder});
      if (next == Next::kEnd) return false;
      if (next != Next::kInside) {
        outside = all.substr(0, slash + 1);
        return true;
      }
      inside = all.substr(0, slash + 1);
    }
    const std::string_view last = all.substr(inside.size());
    // Some tools create an empty object for each folder.
    const bool is_file = last.find('/') == last.npos && IsPart(last);
    return visit({all, is_file ? NameKind::kFile : NameKind::kOther, info.size}) != Next::kEnd;
  });
}

std::unique_ptr<NewPlaceFile> BucketPlace::Begin(FileOutline outline,
                                                 const std::vector<uint32_t>* crcs) const {
  return std::make_unique<ObjectWriter>(&store_, std::move(outline), crcs);
}

bool BucketPlace::PutNew(const std::string& name, std::string_view text) const {
  return store_.PutNew(name, text);
}

void BucketPlace::Put(const std::string& name, const TextWriter& text,
                      const std::function<void()>& before_name) const {
  std::string whole;
  text([&](std::string_view piece) { whole += piece; });
  if (before_name) before_name();
  PutText(store_, name, whole);
}

void BucketPlace::Remove(const std::string&) const { Check(false, "objects are never removed"); }

void BucketPlace::Sync(const std::string&) const {}

}  // namespace shardinit
