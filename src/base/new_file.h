// Creates files and folders that have a temporary name, which identifies the writer, until they are
// complete.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/interrupt.h"
#include "base/output_file.h"
#include "base/sha256.h"

namespace shardinit {

// Unless Commit() is called, the file is removed. `folder` must outlive it.
class NewFile : public OutputFile {
 public:
  NewFile(const Folder& folder, const std::string& name);
  ~NewFile();

  // Syncs the data, gives the file its name and syncs the folder. Replaces a file of that name.
  // Calls `before_name`, which may throw, when everything but the name is done.
  //
  // Another process may have removed the temporary file, for example a finalize() that did not need
  // it. Then a file with this name and size counts as this file: all writers of a name in a
  // checkpoint write the same bytes.
  void Commit(const std::function<void()>& before_name = {});
  // Does the same without syncing the folder, so the name may not be on disk yet. The caller syncs
  // the folder once for many files.
  void CommitUnsynced(const std::function<void()>& before_name);
  // Returns false, with nothing done, if another file has the name and is not empty.
  bool CommitNew();

 private:
  struct Temporary {
    SignalsWait signals;  // since before the file exists
    std::string name;
    Fd fd;
  };

  NewFile(const Folder& folder, const std::string& name, Temporary temporary);
  static Temporary MakeTemporary(const Folder& folder, const std::string& name);
  void TakeName();

  const SignalsWait signals_;
  const Folder& folder_;
  const std::string name_;
  std::string temporary_;
};

// Creates a folder next to `path`, which gets that name when it is complete. Unless Commit() is
// called, the folder is removed.
class NewFolder {
 public:
  // Creates the folder, and removes leftovers of killed runs.
  explicit NewFolder(const std::string& path);
  // Only removes leftovers, for callers that find the folder complete, perhaps made by another run.
  static void RemoveLeftOvers(const std::string& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  const Folder& folder() const { return folder_; }
  // Returns false, with nothing done, if anything but an empty folder has the name.
  bool Commit();

 private:
  const SignalsWait signals_;
  const std::string path_;
  const Folder parent_;
  std::string temporary_;
  Folder folder_;
};

// Returns the final name of a temporary file or folder; empty if `file` is not temporary.
std::string_view NameOfTemporary(std::string_view file);

// A folder that gets the name `path` when it is complete. Unlike a NewFolder, it stays if Commit()
// is not called, and the next StagedFolder with the same `key` resumes it.
//
// Until then it is inside a folder next to `path` that is closed to other users. The name of that
// outer folder is derived from `key` and a random token, which is stored only inside it. So nobody
// else can have created it.
class StagedFolder {
 public:
  // Resumes an existing folder if `may_go_on` returns true for its path. Throws Error (kConflict)
  // if `path` is anything but an empty folder, or if another process is using the staged folder.
  StagedFolder(const std::string& path, const Digest& key,
               const std::function<bool(const std::string& staged)>& may_go_on);
  // Removes the staged folders of killed runs.
  static void RemoveLeftOvers(const std::string& path, const Digest& key);

  const std::string& staged() const { return staged_; }  // the path before Commit()
  bool is_old() const { return is_old_; }                // whether it is resumed
  void Remove();                                         // removes it with its contents
  // Throws Error (kConflict) if anything but an empty folder has the name.
  void Commit();

 private:
  const SignalsWait signals_;
  const std::string path_;
  const Folder parent_;
  std::string name_, staged_;
  Folder folder_;
  bool is_old_ = false;
};

// Which temporary files of other machines, or of other mounts on this machine, count as leftovers.
// A file of this mount is a leftover if its lock is free, on file systems where locks are visible.
// Only the file system knows whether a lock from elsewhere is visible here.
enum class Others { kOld, kAll };

// Removes only NewFile's leftovers in `folder` for whose final names `is_ours` returns true. Files
// that cannot be removed stay.
void RemoveLeftOvers(const Folder& folder,
                     const std::function<bool(std::string_view name)>& is_ours, Others others);

}  // namespace shardinit
