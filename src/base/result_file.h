// Writes a result into a file that a user names, without destroying another file of theirs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// An option that names such a file, with the marks that tell shardinit's files from others.
struct ResultKind {
  std::string_view option;  // `--html`
  std::string_view what;    // `page`
  // These stand in this order in the file's first bytes, the first of them at the very beginning.
  // Without any, no file is known to be of this kind.
  std::vector<std::string_view> marks;
};

// Whatever has the name already decides what happens:
//
//   nothing, or a file of this kind    is made or replaced, whole or not at all
//   another file, a block device       is an error (kConflict), unless `force`
//   one of the command's inputs        is an error (kUsage)
//   a link                             stays; what it leads to is written
//   a device, FIFO, descriptor         is written into, as a shell's `>` does
//
// A file that is replaced keeps its owner and mode, and its other names keep what it had. Where the
// folder cannot be written, or the owner cannot be kept, the file is written in place if it can be.
class ResultFile {
 public:
  // It is made when the command has read its inputs (base/file.h), and before the work: throws
  // Error if Write() would.
  ResultFile(ResultKind kind, std::string path, bool force);

  void Write(std::string_view text) const;
  // Tells whether the text comes among what the command prints.
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
