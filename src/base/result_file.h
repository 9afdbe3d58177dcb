// Writes a result to a file that the user names, without destroying other files of the user.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// An option that names a result file, with the marks that identify shardinit's files.
struct ResultKind {
  std::string_view option;  // `--html`
  std::string_view what;    // `page`
  // Appear in this order in the file's first bytes, the first mark at the very start. If there are
  // none, no file is recognized as this kind.
  std::vector<std::string_view> marks;
};

// The action depends on the existing entry of that name:
//
//   nothing, or a file of this kind    creates or replaces it atomically
//   another file, a block device       Error (kConflict), unless `force`
//   one of the command's inputs        Error (kUsage)
//   a link                             keeps it and writes its target
//   a device, FIFO, descriptor         writes into it, as a shell's `>` does
//
// A replaced file keeps its owner and mode, and its other names keep the old contents. If the
// folder is not writable, or the owner cannot be kept, the file is written in place if possible.
class ResultFile {
 public:
  // Throws Error if Write() would. Create it after the command has read its inputs (base/file.h)
  // and before the work.
  ResultFile(ResultKind kind, std::string path, bool force);

  void Write(std::string_view text) const;
  // Returns whether the text goes to standard output.
  bool IsStandardOutput() const;

 private:
  struct Place;

  Place Find() const;
  void RequireOurs(const Place& place) const;

  const ResultKind kind_;
  const std::string path_;
  const bool force_;
};

}  // namespace shardinit
