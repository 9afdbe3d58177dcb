// A place in memory, for tests of one thread: it supports only what every place supports.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "place/folder_place.h"
#include "place/place.h"

namespace shardinit {

class MemoryPlace : public Place {
 public:
  explicit MemoryPlace(std::map<std::string, std::string> files)
      : Place("memory", FolderPlace::kTraits), files_(std::move(files)) {}

  void RequireFolder(std::string_view) const override {}

  std::string_view Open(const std::string& name, std::unique_ptr<PlaceFile>* file) const override {
    const auto found = files_.find(name);
    if (found == files_.end()) return kIsMissing;
    *file = std::make_unique<File>(found->second);
    return {};
  }

  std::string_view Read(const std::string& name, size_t limit, std::string* text) const override {
    const auto found = files_.find(name);
    if (found == files_.end()) return kIsMissing;
    if (found->second.size() > limit) return kIsTooLarge;
    *text = found->second;
    return {};
  }

  bool Exists(const std::string& name) const override { return files_.contains(name); }

  int64_t SizeOf(const std::string& name) const override {
    const auto found = files_.find(name);
    return found == files_.end() ? -1 : std::ssize(found->second);
  }

  void List(const std::string& folder,
            const std::function<Next(const PlaceEntry& entry)>& visit) const override {
    ListBelow(folder.empty() ? "" : folder + "/", visit);
  }

  std::unique_ptr<NewPlaceFile> Begin(FileOutline outline,
                                      const std::vector<uint32_t>* crcs) const override {
    return std::make_unique<NewFile>(this, std::move(outline), crcs);
  }

  bool PutNew(const std::string& name, std::string_view text) const override {
    return files_.emplace(name, text).second;
  }

  void Put(const std::string& name, const TextWriter& text,
           const std::function<void()>& before_name) const override {
    std::string whole;
    text([&](std::string_view piece) { whole += piece; });
    if (before_name) before_name();
    files_[name] = whole;
  }

  void Remove(const std::string& name) const override { files_.erase(name); }
  void Sync(const std::string&) const override {}

 private:
  class File : public PlaceFile {
   public:
    explicit File(const std::string& bytes) : PlaceFile(std::ssize(bytes)), bytes_(bytes) {}

    void Read(int64_t offset, int64_t bytes, int,
              const std::function<void(std::string_view piece)>& visit) const override {
      if (offset + bytes > size()) throw Error(ExitCode::kWorld, "the file ends before");
      constexpr int64_t kPiece = 1000;
      for (const int64_t end = offset + bytes; offset < end; offset += kPiece) {
        visit(std::string_view(bytes_).substr(static_cast<size_t>(offset),
                                              static_cast<size_t>(std::min(kPiece, end - offset))));
      }
    }

   private:
    const std::string bytes_;
  };

  // Returns false if the listing has ended.
  bool ListBelow(const std::string& begin,
                 const std::function<Next(const PlaceEntry& entry)>& visit) const {
    for (auto next = files_.lower_bound(begin);
         next != files_.end() && next->first.starts_with(begin);) {
      const std::string& name = next->first;
      const size_t slash = name.find('/', begin.size());
      if (slash == name.npos) {
        if (visit({name, NameKind::kFile, std::ssize(next->second)}) == Next::kEnd) return false;
        ++next;
        continue;
      }
      const std::string inner = name.substr(0, slash);
      const Next then = visit({inner, NameKind::kFolder});
      if (then == Next::kEnd) return false;
      if (then == Next::kInside && !ListBelow(inner + "/", visit)) return false;
      next = files_.lower_bound(inner + static_cast<char>('/' + 1));
    }
    return true;
  }

  class NewFile : public NewPlaceFile {
   public:
    NewFile(const MemoryPlace* place, FileOutline outline, const std::vector<uint32_t>* crcs)
        : place_(*place),
          outline_(std::move(outline)),
          crcs_(crcs),
          bytes_(static_cast<size_t>(outline_.size), '\0') {}

    int64_t Write(const void* data, int64_t bytes, int64_t offset) const override {
      const std::string_view text(static_cast<const char*>(data), static_cast<size_t>(bytes));
      bytes_.replace(static_cast<size_t>(offset), text.size(), text);
      return 0;
    }

    bool Complete(const std::function<void()>& before_name) override {
      const std::shared_ptr<FileTexts> texts = outline_.Texts();
      if (outline_.has_crcs) FillCrcs(*crcs_, texts.get());
      for (const FileText& text : texts->texts) {
        bytes_.replace(static_cast<size_t>(text.offset), text.bytes.size(), text.bytes);
      }
      if (before_name) before_name();
      place_.files_[outline_.path] = bytes_;
      return true;
    }

   private:
    const MemoryPlace& place_;
    const FileOutline outline_;
    const std::vector<uint32_t>* const crcs_;
    mutable std::string bytes_;
  };

  mutable std::map<std::string, std::string> files_;
};

}  // namespace shardinit
