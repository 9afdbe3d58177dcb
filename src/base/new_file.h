// Files and folders on their way to the disk have a temporary name, which says who makes them,
// until they are complete.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/interrupt.h"
#include "base/output_file.h"
#include "base/sha256.h"

namespace shardinit {

// Without Commit() nothing of the file is left. `folder` must outlive it.
class NewFile : public OutputFile {
 public:
  NewFile(const Folder& folder, const std::string& name);
  ~NewFile();

  // Brings the data to the disk, then the name, then the folder; replaces the file that had the
  // name. `before_name` may throw when all but the name is there. If the temporary file was removed
  // meanwhile, as by a finalize() that had no need of it, a file of the same size that has the name
  // is this one: two that write a name of a checkpoint write the same bytes.
  void Commit(const std::function<void()>& before_name = {});
  // Does the same, except that the name may not be on the disk yet: the caller syncs the folder,
  // once for the names of many files.
  void CommitUnsynced(const std::function<void()>& before_name);
  // Returns false, with nothing done, if another file has the name already and is not empty.
  bool CommitNew();

 private:
  struct Temporary {
    SignalsWait signals;  // from before the file is there
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

// A new folder is made beside `path` and gets that name when it is complete. Without Commit()
// nothing of it is left.
class NewFolder {
 public:
  // Makes the folder, and removes left-overs of killed runs.
  explicit NewFolder(const std::string& path);
  // Removes only those: the folder is there already, perhaps by another run.
  static void RemoveLeftOvers(const std::string& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  const Folder& folder() const { return folder_; }
  // Returns false, with nothing done, if the name is taken by more than an empty folder.
  bool Commit();

 private:
  const SignalsWait signals_;
  const std::string path_;
  const Folder parent_;
  std::string temporary_;
  Folder folder_;
};

// Returns the name that a temporary file or folder stands for; empty if `file` is not temporary.
std::string_view NameOfTemporary(std::string_view file);

// A staged folder gets the name `path` when it is complete, like a NewFolder; but without Commit()
// it stays, and the next one of the same `key` goes on with it. Until then it is in a folder
// beside, which is closed to others. Its name there is made from a random token that stands only in
// that folder, together with the key: so nobody else can have put it there.
class StagedFolder {
 public:
  // Goes on with a folder that is there, if `may_go_on` is true of its path. Throws Error
  // (kConflict) if `path` is more than an empty folder, or another process is at work in one.
  StagedFolder(const std::string& path, const Digest& key,
               const std::function<bool(const std::string& staged)>& may_go_on);
  // Removes the staged folders that killed runs left.
  static void RemoveLeftOvers(const std::string& path, const Digest& key);

  const std::string& staged() const { return staged_; }  // the path until Commit()
  bool is_old() const { return is_old_; }                // whether it was there before
  void Remove();                                         // removes all that is in it, too
  // Throws Error (kConflict) if the name is taken by more than an empty folder.
  void Commit();

 private:
  const SignalsWait signals_;
  const std::string path_;
  const Folder parent_;
  std::string name_, staged_;
  Folder folder_;
  bool is_old_ = false;
};

// Chooses which temporary files of other machines, or of other mounts of this one, are left-overs.
// A file of this mount is a left-over if its lock is free, where locks are seen; only the file
// system knows whether a lock from elsewhere is seen.
enum class Others { kOld, kAll };

// Removes the left-overs of NewFile in `folder` that stand for names for which `is_ours` is true,
// and nothing else. Files that cannot be removed stay.
void RemoveLeftOvers(const Folder& folder,
                     const std::function<bool(std::string_view name)>& is_ours, Others others);

}  // namespace shardinit
