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

// Supplies the elements of boxes that are not generated.
class TaskSource {
 public:
  virtual ~TaskSource() = default;

  // Returns whether to call Open now, for these tasks of one more file and all tasks passed here
  // since the last Open. If not, the next file's tasks should join them, because they need other
  // parts of the same boxes.
  virtual bool IsEnough(const std::vector<BoxTask>& tasks) = 0;
  // Makes the tasks of some files read their elements. Returns a check to call when all tasks are
  // done, before any of the files gets its name. The check throws if the elements are wrong.
  virtual std::function<void()> Open(std::vector<BoxTask>* tasks) = 0;
  // Returns whether reading many elements at once is faster than reading them in parts.
  virtual bool wants_long_stretches() const { return false; }
};

// Runs the tasks of files on workers, in groups of files that are best opened together.
class FileGroups {
 public:
  // Without a source, each file is a group. At most `at_once` files are in groups other than the
  // one being collected. Workers::WaitFor calls `every_tick`, which may be empty, with the number
  // of finished files.
  FileGroups(const WorkerOptions& options, WorkCounters* counters, TaskSource* source,
             int64_t at_once, std::function<void(int64_t done)> every_tick);

  // Waits until there is room for another file. Call it before opening the file.
  void WaitForRoom();
  // Adds a file. Calls `done` when its tasks are done and its sources and the sources of all
  // earlier files are checked. A box is checked with the first file that uses it. Without this
  // order, a file made from a damaged box could stay if the run ended before the check.
  void Add(std::vector<BoxTask> tasks, std::function<void()> done);
  // Waits until all files are done.
  void Finish();

 private:
  using Files = std::vector<std::function<void()>>;
  void Submit();
  void RunCallbacks(Files files);
  void FinishInOrder(int64_t group, Files files);

  TaskSource* const source_;
  const int64_t at_once_;
  const std::function<void()> every_tick_;
  std::vector<BoxTask> tasks_;  // tasks of the group being collected
  Files files_;
  int64_t added_ = 0, submitted_ = 0;  // number of files, number of groups
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  int64_t next_ = 0;  // the first group that is not checked
  std::map<int64_t, Files> waiting_;
  Workers workers_;  // last, to end before the members above
};

// The work that makes one file.
struct FileWork {
  std::vector<BoxTask> tasks;
  // Gives the file its name when all tasks are done. Returns false if the file must be made again.
  std::function<bool()> commit;
};

struct MakeRequest {
  const Place& place;
  WorkerOptions workers;
  TaskSource* source;
  int64_t at_once;         // the number of files that are open at once
  std::string_view files;  // what messages call the files, such as `ranks`
  // Called by Workers::WaitFor() with the number of finished files; may be empty.
  std::function<void(int64_t done)> tick;
};

// Makes `files`, which ascend, each by the work that `begin` returns. If another process ends the
// upload of a file, makes it again, a few times. Throws Error (kWorld) if that does not help.
void MakeFiles(const MakeRequest& request, std::vector<int64_t> files,
               const std::function<FileWork(int64_t file)>& begin, WorkCounters* counters);

// Returns the outline of a file whose boxes are not written yet. `layout` must outlive it.
FileOutline OutlineFile(const FileLayout& layout);
// Does the same, and moves the texts out of the layout.
FileOutline TakeOutline(FileLayout* layout);

// Returns the tasks that write the file's boxes. If `file` is null, they only compute digests.
// Digests have the order of the boxes, and so do CRCs, if the layout stores them. All arguments
// must outlive the tasks.
std::vector<BoxTask> TasksOf(const FileLayout& layout, const Sink* file,
                             std::vector<Digest>* digests, std::vector<uint32_t>* crcs = nullptr);

// Returns the complete layout, with the CRCs of its boxes in its texts.
FileLayout Finished(const FileLayout& layout, const std::vector<uint32_t>& crcs);

}  // namespace shardinit
