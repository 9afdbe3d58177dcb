// A place in memory, for tests: what every place does, and nothing else.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "place/place.h"

namespace shardinit {

class MemoryPlace : public Place {
 public:
  explicit MemoryPlace(std::map<std::string, std::string> files,
                       PlaceTraits traits = {.is_remote = false,
                                             .lists_all = true,
                                             .removes = true})
      : Place("memory", traits), files_(std::move(files)) {}

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

  const std::map<std::string, std::string> files_;
};

}  // namespace shardinit
