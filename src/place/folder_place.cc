#include "place/folder_place.h"

#include <type_traits>
#include <utility>

#include "base/file.h"
#include "base/new_file.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

class DiskFile : public PlaceFile {
 public:
  DiskFile(std::string path, Fd fd, int64_t size)
      : PlaceFile(size), path_(std::move(path)), fd_(std::move(fd)) {}

  void Read(int64_t offset, int64_t bytes, int /*at_once*/,
            const std::function<void(std::string_view piece)>& visit) const override {
    ReadRange(fd_.get(), path_, offset, bytes, visit);
  }

 private:
  const std::string path_;
  const Fd fd_;
};

// Returns the part of a name after the last slash.
std::string LastPart(const std::string& name) { return name.substr(name.rfind('/') + 1); }

// `File` is NewFile, or OutputFile in a private folder.
template <typename File>
class NewDiskFile : public NewPlaceFile {
 public:
  NewDiskFile(std::shared_ptr<const Folder> folder, FileOutline outline,
              const std::vector<uint32_t>* crcs)
      : folder_(std::move(folder)),
        outline_(std::move(outline)),
        crcs_(crcs),
        file_(*folder_, LastPart(outline_.path)) {
    if (!outline_.boxes.empty()) file_.Reserve(outline_.size);
    if (!outline_.has_crcs) WriteTexts(*outline_.Texts());
    // The texts of a file without boxes may end before its final zeros.
    file_.Resize(outline_.size);
    outline_.boxes = {};
    if (!outline_.has_crcs) outline_.texts = nullptr;
  }

  int64_t Write(const void* data, int64_t bytes, int64_t offset) const override {
    return file_.Write(data, bytes, offset);
  }

  bool Complete(const std::function<void()>& before_name) override {
    if (outline_.has_crcs) {
      const std::shared_ptr<FileTexts> texts = outline_.Texts();
      FillCrcs(*crcs_, texts.get());
      WriteTexts(*texts);
    }
    if constexpr (std::is_same_v<File, NewFile>) {
      file_.Commit(before_name);
    } else {
      file_.Sync();
    }
    return true;
  }

 private:
  void WriteTexts(const FileTexts& texts) const {
    for (const FileText& text : texts.texts) file_.WriteText(text.bytes, text.offset);
  }

  const std::shared_ptr<const Folder> folder_;
  FileOutline outline_;
  const std::vector<uint32_t>* const crcs_;
  File file_;
};

}  // namespace

FolderPlace::FolderPlace(const std::string& path)
    : Place(path, kTraits),
      root_(std::make_shared<Folder>(IsFolder(path) ? Folder::Open(path) : Folder())) {}

FolderPlace::FolderPlace(std::shared_ptr<const Folder> root, Kind kind)
    : Place(root->path(), kTraits), root_(std::move(root)), kind_(kind) {}

void FolderPlace::RequireFolder(std::string_view wanted) const {
  if (const auto wrong = WrongKind(path(), wanted)) throw *wrong;
  shardinit::RequireFolder(path());
}

std::shared_ptr<const Folder> FolderPlace::Parent(const std::string& name) const {
  const size_t slash = name.rfind('/');
  return slash == name.npos ? root_ : OpenSub(name.substr(0, slash));
}

std::shared_ptr<const Folder> FolderPlace::OpenSub(const std::string& name) const {
  {
    const std::lock_guard lock(mutex_);
    if (last_ != nullptr && last_name_ == name) return last_;
  }
  const std::shared_ptr<const Folder> above = Parent(name);
  const std::string last = LastPart(name);
  struct stat info;
  // Names inside a file do not exist.
  const bool is_other =
      above->Look(last, &info) && !S_ISDIR(info.st_mode) && !S_ISLNK(info.st_mode);
  auto sub = std::make_shared<Folder>(is_other ? Folder() : above->OpenSub(last));
  if (*sub) {
    const std::lock_guard lock(mutex_);
    last_name_ = name;
    last_ = sub;
  }
  return sub;
}

std::shared_ptr<const Folder> FolderPlace::ParentToWrite(const std::string& name) const {
  std::shared_ptr<const Folder> parent = Parent(name);
  if (*parent) return parent;
  for (size_t slash = 0; (slash = name.find('/', slash + 1)) != name.npos;) {
    root_->MakeSub(name.substr(0, slash));
  }
  return Parent(name);
}

std::string_view FolderPlace::Open(const std::string& name,
                                   std::unique_ptr<PlaceFile>* file) const {
  Fd fd;
  int64_t size = 0;
  const std::string_view wrong = Parent(name)->OpenIfFile(LastPart(name), &fd, &size);
  if (wrong.empty()) *file = std::make_unique<DiskFile>(PathOf(name), std::move(fd), size);
  return wrong;
}

std::string_view FolderPlace::Read(const std::string& name, size_t limit, std::string* text) const {
  return Parent(name)->ReadIfFile(LastPart(name), limit, text);
}

bool FolderPlace::Exists(const std::string& name) const {
  return Parent(name)->Exists(LastPart(name));
}

int64_t FolderPlace::SizeOf(const std::string& name) const {
  return Parent(name)->FileSize(LastPart(name));
}

void FolderPlace::List(const std::string& folder,
                       const std::function<Next(const PlaceEntry& entry)>& visit) const {
  const std::string begin = folder.empty() ? "" : folder + "/";
  bool has_ended = false;
  (folder.empty() ? root_ : OpenSub(folder))->Walk([&](const std::string& name, NameKind kind) {
    if (has_ended) return false;
    const Next next = visit({begin + name, kind});
    has_ended = next == Next::kEnd;
    return next == Next::kInside;
  });
}

std::unique_ptr<NewPlaceFile> FolderPlace::Begin(FileOutline outline,
                                                 const std::vector<uint32_t>* crcs) const {
  std::shared_ptr<const Folder> parent = ParentToWrite(outline.path);
  if (kind_ == kPrivate) {
    return std::make_unique<NewDiskFile<OutputFile>>(std::move(parent), std::move(outline), crcs);
  }
  return std::make_unique<NewDiskFile<NewFile>>(std::move(parent), std::move(outline), crcs);
}

bool FolderPlace::PutNew(const std::string& name, std::string_view text) const {
  const std::shared_ptr<const Folder> parent = ParentToWrite(name);
  NewFile file(*parent, LastPart(name));
  file.Append(text);
  return file.CommitNew();
}

void FolderPlace::Put(const std::string& name, const TextWriter& text,
                      const std::function<void()>& before_name) const {
  const std::shared_ptr<const Folder> parent = ParentToWrite(name);
  NewFile file(*parent, LastPart(name));
  text([&](std::string_view piece) { file.Append(piece); });
  file.CommitUnsynced(before_name);
}

void FolderPlace::Remove(const std::string& name) const { Parent(name)->Remove(LastPart(name)); }

void FolderPlace::Sync(const std::string& folder) const {
  const std::shared_ptr<const Folder> sub = folder.empty() ? root_ : OpenSub(folder);
  if (*sub) sub->Sync();
}

}  // namespace shardinit
