// Creates one folder from several processes, on one machine or on several with a shared file
// system. Until it is complete, it is inside another folder, `PATH.parts`.
#pragma once

#include <string>

#include "base/folder.h"

namespace shardinit {

class SharedFolder {
 public:
  // Creates `PATH.parts`, or joins the processes that created it for the same `claim`. Throws
  // Error: kConflict if it has another claim, kWorld if another process has finished the folder.
  SharedFolder(const std::string& path, const std::string& claim);
  // Removes `PATH.parts` with that claim, if it exists. It may be from a run that was killed in
  // Commit(), or that began after the folder was finished.
  static void RemoveLeftOvers(const std::string& path, const std::string& claim);

  // Returns the path that becomes the folder.
  std::string files() const;
  // A folder for messages between the processes.
  const Folder& notes() const { return notes_; }

  // Removes the temporary files of killed processes. Once all files exist, nobody needs temporary
  // files.
  void RemoveKilled() const;

  // Returns whether another process has given the folder its name, so nothing is left to do.
  bool IsTaken() const;

  // Gives the folder its name and removes the rest. Returns false if the name is taken, or if
  // another process did all this.
  bool Commit();

 private:
  const std::string path_;
  const Folder parent_, folder_;
  Folder notes_;
};

}  // namespace shardinit
