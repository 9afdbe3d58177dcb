// Files and folders on their way to the disk: under a temporary name, which says who makes them,
// until all of them is there.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/interrupt.h"
#include "base/output_file.h"
#include "base/sha256.h"

namespace shardinit {

// Without Commit() nothing of it is left. `folder` must outlive it.
class NewFile : public OutputFile {
 public:
  NewFile(const Folder& folder, const std::string& name);
  ~NewFile();

  // Data to disk, its name, the folder to disk; replaces what had the name. `before_name` may throw
  // when all but the name is there. If the temporary file
  // was removed meanwhile, as by a finalize() that had no need of it, a file of the same size that
  // has the name is this one: two that write a name of a checkpoint write the same bytes.
  void Commit(const std::function<void()>& before_name = {});
  // False, and nothing done, if another file has the name already, and is not empty.
  bool CommitNew();

 private:
  struct Temporary {
    SignalsWait signals;  // From before the file is there.
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

// A folder beside `path` that gets the name when all in it is there. Without Commit() nothing of it
// is left.
class NewFolder {
 public:
  // Also removes left-overs of killed runs.
  explicit NewFolder(const std::string& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  const Folder& folder() const { return folder_; }
  // False, and nothing done, if the name is taken by more than an empty folder.
  bool Commit();

 private:
  const SignalsWait signals_;
  const std::string path_;
  const Folder parent_;
  std::string temporary_;
  Folder folder_;
};

// The name that a temporary file or folder stands for; empty: it is none.
std::string_view NameOfTemporary(std::string_view file);

// A folder that gets the name `path` when all in it is there, as NewFolder; but without Commit() it
// stays, and the next one of the same `key` goes on with it. Until then it is in a folder beside,
// which is closed to others. A random token that stands only in there, together with the key, makes
// the name of that: so nobody can have put it there.
class StagedFolder {
 public:
  // Goes on with one that is there, if `may_go_on` is true of where it is. Throws Error (kConflict)
  // if `path` is more than an empty folder, or another process is at work in one.
  StagedFolder(const std::string& path, const Digest& key,
               const std::function<bool(const std::string& staged)>& may_go_on);
  // Removes those that killed runs left.
  static void RemoveLeftOvers(const std::string& path, const Digest& key);

  const std::string& staged() const { return staged_; }  // Where it is meanwhile.
  bool is_old() const { return is_old_; }                // It was there.
  void Remove();                                         // With all in it.
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

// Which temporary files of other machines, or of other mounts of one's own, are left-overs. Those
// of this mount are the ones whose lock is free, where locks are seen; whether a lock from
// elsewhere is seen is the file system's secret.
enum class Others { kOld, kAll };

// Removes the left-overs of NewFile in `folder` that stand for names of which `is_ours` is true,
// and nothing else. What cannot be removed stays.
void RemoveLeftOvers(const Folder& folder,
                     const std::function<bool(std::string_view name)>& is_ours, Others others);

}  // namespace shardinit
