// A folder that several processes make together, on one machine or on many with a shared file
// system. Until all of it is there it lies in another one, `PATH.parts`.
#pragma once

#include <string>

#include "base/folder.h"

namespace shardinit {

class SharedFolder {
 public:
  // Makes `PATH.parts`, or joins those who did, if they made it for the same `claim`. Throws Error
  // (kConflict) if it is for another one, and (kWorld) if another process has finished it
  // meanwhile.
  SharedFolder(const std::string& path, const std::string& claim);
  // Removes `PATH.parts` of that claim, if it is there: what a run left that was killed in its
  // Commit(), or began when the folder was there.
  static void RemoveLeftOvers(const std::string& path, const std::string& claim);

  // The path of what becomes the folder.
  std::string files() const;
  // A folder for what the processes tell each other.
  const Folder& notes() const { return notes_; }

  // Removes the temporary files of killed processes. Nobody needs one when all files are there.
  void RemoveKilled() const;

  // Tells whether another process has given the folder its name: nothing is left to do.
  bool IsTaken() const;

  // Gives the folder its name, and removes the rest. Returns false if the name is taken, or if
  // another process did all this.
  bool Commit();

 private:
  const std::string path_;
  const Folder parent_, folder_;
  Folder notes_;
};

}  // namespace shardinit
