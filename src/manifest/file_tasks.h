// From a layout to the work that fills a file.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "base/output_file.h"
#include "formats/format.h"
#include "generate/workers.h"

namespace shardinit {

// Where the elements of boxes come from that are not generated.
class TaskSource {
 public:
  virtual ~TaskSource() = default;

  // Whether Open had better be called for the tasks of one file more, these, and of those that this
  // was called with since it was last. Else with the next file's, too: they want more of what these
  // want some of.
  virtual bool IsEnough(const std::vector<BoxTask>& tasks) = 0;
  // Makes the tasks of some files what reads them, too, and returns what is to be called when all
  // of these are done and before any of the files gets its name, which throws if the elements are
  // not the right ones.
  virtual std::function<void()> Open(std::vector<BoxTask>* tasks) = 0;
};

// Has workers do the tasks of files: of those together that had better be opened together.
class FileGroups {
 public:
  // Without a source each file is a group. Files of other groups than the one that is being put
  // together are `at_once` at most. `every_tick`, if there is one, is called as Workers::WaitFor
  // does, with the files that are done.
  FileGroups(const WorkerOptions& options, WorkCounters* counters, TaskSource* source,
             int64_t at_once, std::function<void(int64_t done)> every_tick);

  // Before a file is opened: until there is room for it.
  void WaitForRoom();
  // `done` is called when the file's tasks are, and what all files before it were made from is
  // checked, too: a box is checked with the first of those that have some of it, and what was made
  // from a damaged one must not stay where the run ends before that is found out.
  void Add(std::vector<BoxTask> tasks, std::function<void()> done);
  // Until all are done.
  void Finish();

 private:
  using Files = std::vector<std::function<void()>>;
  void Submit();
  void AreDone(Files files);
  void AreChecked(int64_t group, Files files);

  TaskSource* const source_;
  const int64_t at_once_;
  const std::function<void()> every_tick_;
  std::vector<BoxTask> tasks_;  // Of a group that is being put together.
  Files files_;
  int64_t added_ = 0, submitted_ = 0;  // Files; groups.
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  int64_t next_ = 0;  // The first group that is not checked.
  std::map<int64_t, Files> waiting_;
  Workers workers_;  // Last: they end before what they use.
};

// Reserves the space of all of the file, if it has boxes, and writes its texts, unless CRCs stand
// in them.
void BeginFile(const FileLayout& layout, OutputFile& file);

// Its boxes, whose digests come in the same order, and their CRCs, where the layout has places for
// these. All of these must live until the tasks are done.
std::vector<BoxTask> TasksOf(const FileLayout& layout, const OutputFile& file,
                             std::vector<Digest>* digests, std::vector<uint32_t>* crcs = nullptr);

// When all boxes are made: puts their CRCs into the texts, if they stand there, and writes them.
void FinishFile(const std::vector<uint32_t>& crcs, FileLayout* layout, const OutputFile& file);

}  // namespace shardinit
