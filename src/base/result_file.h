// A file for a result, which a user names: it must not cost them another one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// An option that names such a file, and how one that this tool made is told from others.
struct ResultKind {
  std::string_view option;              // `--html`.
  std::string_view what;                // `page`.
  std::vector<std::string_view> marks;  // They stand in this order in its first bytes, the first
                                        // of them at the very beginning.
};

// What has the name already decides what happens:
//
//   nothing, or a file of this kind    is made or replaced, whole or not at all
//   another file, a block device       is an error (kConflict), unless `force`
//   one of the command's inputs        is an error (kUsage)
//   a link                             stays; what it leads to is written
//   a device, FIFO, descriptor         is written into, as a shell's `>` does
//
// A file that is replaced keeps its owner and mode, and its other names keep what it had. Where the
// folder cannot be written, or the owner not be kept, a file that can is written in place.
class ResultFile {
 public:
  // Made when the command has read its inputs (base/inputs.h), and before the work: throws Error if
  // Write() would.
  ResultFile(ResultKind kind, std::string path, bool force);

  void Write(std::string_view text) const;
  // Whether the text comes among what the command prints.
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
