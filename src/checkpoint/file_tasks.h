// Turns a file's layout into the work that fills the file.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "formats/format.h"
#include "generate/workers.h"
#include "place/file_outline.h"
#include "place/place.h"

namespace shardinit {

// The source of the elements of boxes that are not generated.
class TaskSource {
 public:
  virtual ~TaskSource() = default;

  // Returns whether Open should be called now, for these tasks of one more file and for all those
  // given here since its last call. If not, the next file's tasks should join them: they want more
  // of what these want some of.
  virtual bool IsEnough(const std::vector<BoxTask>& tasks) = 0;
  // Changes the tasks of some files so that they read their elements. Returns a check to call when
  // all of them are done and before any of the files gets its name; it throws if the elements are
  // not the right ones.
  virtual std::function<void()> Open(std::vector<BoxTask>* tasks) = 0;
  // Returns whether many elements at once take less time than the same in parts.
  virtual bool wants_long_stretches() const { return false; }
};

// Has workers do the tasks of files, in groups of files that are best opened together.
class FileGroups {
 public:
  // Without a source each file is a group. At most `at_once` files are in groups other than the one
  // being put together. `every_tick`, if there is one, is called as Workers::WaitFor does, with the
  // number of files that are done.
  FileGroups(const WorkerOptions& options, WorkCounters* counters, TaskSource* source,
             int64_t at_once, std::function<void(int64_t done)> every_tick);

  // Waits until there is room for another file. Call it before opening the file.
  void WaitForRoom();
  // Calls `done` when the file's tasks are done and the sources of this file and of all files
  // before it are checked. A box is checked with the first file that has some of it, and a file
  // made from a damaged box must not stay if the run ends before the damage is found.
  void Add(std::vector<BoxTask> tasks, std::function<void()> done);
  // Waits until all files are done.
  void Finish();

 private:
  using Files = std::vector<std::function<void()>>;
  void Submit();
  void AreDone(Files files);
  void AreChecked(int64_t group, Files files);

  TaskSource* const source_;
  const int64_t at_once_;
  const std::function<void()> every_tick_;
  std::vector<BoxTask> tasks_;  // tasks of the group that is being put together
  Files files_;
  int64_t added_ = 0, submitted_ = 0;  // number of files, number of groups
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  int64_t next_ = 0;  // the first group that is not checked
  std::map<int64_t, Files> waiting_;
  Workers workers_;  // Workers are last: they end before what they use.
};

// The work that makes one file.
struct FileWork {
  std::vector<BoxTask> tasks;
  // Gives the file its name when all tasks are done. Returns false if it must be made again.
  std::function<bool()> commit;
};

struct MakeRequest {
  const Place& place;
  WorkerOptions workers;
  TaskSource* source;
  int64_t at_once;         // the number of files that are open at once
  std::string_view files;  // what messages call the files, such as `ranks`
  // Called as Workers::WaitFor() does, with the number of files that are done; may be empty.
  std::function<void(int64_t done)> tick;
};

// Makes these files, ascending, each by the work that `begin` returns. Files whose uploads another
// process has ended are made again, a few times. Throws Error (kWorld) if that does not help.
void MakeFiles(const MakeRequest& request, std::vector<int64_t> files,
               const std::function<FileWork(int64_t file)>& begin, WorkCounters* counters);

// Returns what is known of a file before its boxes are written. The layout must outlive the result.
FileOutline OutlineFile(const FileLayout& layout);
// Does the same, and moves the texts out of the layout.
FileOutline TakeOutline(FileLayout* layout);

// Returns tasks for the file's boxes; a null file is for their digests alone. Digests come in
// the same order, and so do CRCs, if the layout has places for these. All arguments must live until
// the tasks are done.
std::vector<BoxTask> TasksOf(const FileLayout& layout, const Sink* file,
                             std::vector<Digest>* digests, std::vector<uint32_t>* crcs = nullptr);

// Returns the file complete, with the CRCs of its boxes in its texts.
FileLayout Finished(const FileLayout& layout, const std::vector<uint32_t>& crcs);

}  // namespace shardinit
