#include "checkpoint/file_tasks.h"

#include <iterator>
#include <utility>

#include "base/error.h"

namespace shardinit {
namespace {

void WriteTexts(const FileLayout& layout, const OutputFile& file) {
  file.WriteText(layout.head, 0);
  for (const FileText& text : layout.texts) file.WriteText(text.bytes, text.offset);
}

WorkerOptions For(const TaskSource* source, WorkerOptions options) {
  options.has_long_blocks = source != nullptr && source->wants_long_stretches();
  return options;
}

}  // namespace

FileGroups::FileGroups(const WorkerOptions& options, WorkCounters* counters, TaskSource* source,
                       int64_t at_once, std::function<void(int64_t done)> every_tick)
    : source_(source),
      at_once_(at_once),
      every_tick_([this, every_tick = std::move(every_tick)] {
        if (every_tick) every_tick(done_);
      }),
      workers_(For(source, options), counters) {}

void FileGroups::WaitForRoom() {
  while (true) {
    // Groups are counted before files: otherwise the last group might end in between, and the wait
    // would be for one more than there are.
    const int64_t finished = workers_.finished_groups();
    if (!files_.empty() || added_ - done_ < at_once_) return;
    workers_.WaitFor(finished + 1, every_tick_);
  }
}

void FileGroups::Add(std::vector<BoxTask> tasks, std::function<void()> done) {
  const bool is_enough = source_ == nullptr || source_->IsEnough(tasks);
  std::move(tasks.begin(), tasks.end(), std::back_inserter(tasks_));
  files_.push_back(std::move(done));
  ++added_;
  if (is_enough) Submit();
}

void FileGroups::Finish() {
  if (!files_.empty()) Submit();
  workers_.WaitFor(submitted_, every_tick_);
}

void FileGroups::Submit() {
  std::function<void()> check;
  if (source_ != nullptr) check = source_->Open(&tasks_);
  workers_.Submit(std::exchange(tasks_, {}),
                  [this, group = submitted_, check, files = std::exchange(files_, {})]() mutable {
                    if (!check) return AreDone(std::move(files));
                    check();
                    AreChecked(group, std::move(files));
                  });
  ++submitted_;
}

void FileGroups::AreDone(Files files) {
  for (std::function<void()>& done : files) {
    done();
    done = nullptr;  // This releases what it holds, such as open files.
    ++done_;
  }
}

void FileGroups::AreChecked(int64_t group, Files files) {
  std::unique_lock lock(mutex_);
  waiting_.emplace(group, std::move(files));
  while (!waiting_.empty() && waiting_.begin()->first == next_) {
    auto first = waiting_.extract(waiting_.begin());
    ++next_;
    lock.unlock();  // Other groups may end meanwhile.
    AreDone(std::move(first.mapped()));
    lock.lock();
  }
}

void BeginFile(const FileLayout& layout, OutputFile& file) {
  if (layout.complete && layout.boxes.empty()) return BeginFile(Completed(layout), file);
  if (!layout.boxes.empty()) file.Reserve(layout.size());
  if (!layout.has_crcs()) WriteTexts(layout, file);
  // A file without boxes gets the length of its texts, which may end in zeros.
  file.Resize(layout.size());
}

std::vector<BoxTask> TasksOf(const FileLayout& layout, const Sink* file,
                             std::vector<Digest>* digests, std::vector<uint32_t>* crcs) {
  std::vector<BoxTask> tasks;
  digests->resize(layout.boxes.size());
  if (layout.has_crcs()) crcs->resize(layout.boxes.size());
  for (size_t b = 0; b < layout.boxes.size(); ++b) {
    const FileBox& box = layout.boxes[b];
    tasks.push_back({box.tensor, box.box, {file, box.offset}, &(*digests)[b]});
    if (layout.has_crcs()) tasks.back().crc = &(*crcs)[b];
  }
  return tasks;
}

void FinishFile(const FileLayout& layout, const std::vector<uint32_t>& crcs,
                const OutputFile& file) {
  if (layout.has_crcs()) WriteTexts(Finished(layout, crcs), file);
}

FileLayout Finished(const FileLayout& layout, const std::vector<uint32_t>& crcs) {
  FileLayout whole = Completed(layout);
  std::string* text = &whole.head;
  int64_t offset = 0;
  size_t next = 0;
  for (const CrcPlace& place : whole.crcs) {
    while (place.offset >= offset + std::ssize(*text)) {
      Check(next < whole.texts.size(), "a CRC that stands in no text");
      text = &whole.texts[next].bytes;
      offset = whole.texts[next++].offset;
    }
    for (int64_t i = 0; i < 4; ++i) {
      text->at(static_cast<size_t>(place.offset - offset + i)) =
          static_cast<char>(crcs[place.box] >> (8 * i) & 0xff);
    }
  }
  return whole;
}

}  // namespace shardinit
