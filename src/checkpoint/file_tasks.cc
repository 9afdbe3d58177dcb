#include "checkpoint/file_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"

namespace shardinit {
namespace {

constexpr int kUploads = 8;  // parts sent at once, because one connection is slower than a network
constexpr int kRounds = 5;   // attempts to make a file whose uploads others end

// Returns the head of a complete layout and its other texts in one list.
std::shared_ptr<FileTexts> TakeTexts(FileLayout layout) {
  auto texts = std::make_shared<FileTexts>();
  if (!layout.head.empty()) texts->texts.push_back({0, std::move(layout.head)});
  std::ranges::move(layout.texts, std::back_inserter(texts->texts));
  texts->crcs = std::move(layout.crcs);
  return texts;
}

FileOutline OutlineWithoutTexts(const FileLayout& layout) {
  FileOutline outline = {
      .path = layout.path, .size = layout.size(), .boxes = {}, .has_crcs = layout.has_crcs()};
  for (const FileBox& box : layout.boxes) outline.boxes.push_back({box.offset, BytesOf(box)});
  return outline;
}

WorkerOptions OptionsForSource(const TaskSource* source, WorkerOptions options) {
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
      workers_(OptionsForSource(source, options), counters) {}

void FileGroups::WaitForRoom() {
  while (true) {
    // Groups are counted before files. Otherwise the last group might end in between, and the wait
    // would be for a group that does not exist.
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
                    if (!check) return RunCallbacks(std::move(files));
                    check();
                    FinishInOrder(group, std::move(files));
                  });
  ++submitted_;
}

void FileGroups::RunCallbacks(Files files) {
  for (std::function<void()>& done : files) {
    done();
    done = nullptr;  // releases its resources, such as open files
    ++done_;
  }
}

void FileGroups::FinishInOrder(int64_t group, Files files) {
  std::unique_lock lock(mutex_);
  waiting_.emplace(group, std::move(files));
  while (!waiting_.empty() && waiting_.begin()->first == next_) {
    auto first = waiting_.extract(waiting_.begin());
    ++next_;
    lock.unlock();  // other groups may end meanwhile
    RunCallbacks(std::move(first.mapped()));
    lock.lock();
  }
}

void MakeFiles(const MakeRequest& request, std::vector<int64_t> files,
               const std::function<FileWork(int64_t file)>& begin, WorkCounters* counters) {
  const bool is_remote = request.place.traits().is_remote;
  WorkerOptions workers = request.workers;
  if (is_remote) workers.writers = kUploads;
  workers.in_order = workers.in_order || is_remote;
  const int64_t all = std::ssize(files);
  for (int round = 0; !files.empty(); ++round) {
    if (round == kRounds) {
      throw Error(ExitCode::kWorld,
                  fmt::format("another process keeps aborting the uploads of {} of {} {}",
                              files.size(), all, request.files),
                  "stop that process, and run the same command again");
    }
    std::mutex mutex;
    std::vector<int64_t> again;
    FileGroups groups(workers, counters, request.source, request.at_once, [&](int64_t done) {
      if (request.tick) request.tick(all - std::ssize(files) + done);
    });
    for (const int64_t file : files) {
      ThrowIfInterrupted();
      groups.WaitForRoom();
      FileWork work = begin(file);
      // A part is complete soonest if its boxes are made in order.
      if (is_remote) {
        std::ranges::sort(work.tasks, {}, [](const BoxTask& task) { return task.output.offset; });
      }
      groups.Add(std::move(work.tasks), [&, file, commit = std::move(work.commit)] {
        if (commit()) return;
        const std::lock_guard lock(mutex);
        again.push_back(file);
      });
    }
    groups.Finish();
    std::ranges::sort(again);
    files = std::move(again);
  }
}

FileOutline OutlineFile(const FileLayout& layout) {
  FileOutline outline = OutlineWithoutTexts(layout);
  outline.texts = [&layout] {
    if (layout.complete) return TakeTexts(Completed(layout));
    // The boxes are not copied: there may be millions.
    FileLayout texts = {.path = {}, .head = layout.head};
    texts.texts = layout.texts;
    texts.crcs = layout.crcs;
    return TakeTexts(std::move(texts));
  };
  return outline;
}

FileOutline TakeOutline(FileLayout* layout) {
  FileOutline outline = OutlineWithoutTexts(*layout);
  FileLayout taken = {.path = {}, .head = std::exchange(layout->head, {})};
  taken.texts = std::exchange(layout->texts, {});
  taken.crcs = std::exchange(layout->crcs, {});
  outline.texts = [texts = TakeTexts(std::move(taken))] { return texts; };
  return outline;
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

FileLayout Finished(const FileLayout& layout, const std::vector<uint32_t>& crcs) {
  FileLayout whole = Completed(layout);
  if (whole.crcs.empty()) return whole;
  FileTexts texts{{{0, std::move(whole.head)}}, whole.crcs};
  std::ranges::move(whole.texts, std::back_inserter(texts.texts));
  FillCrcs(crcs, &texts);
  whole.head = std::move(texts.texts.front().bytes);
  whole.texts.assign(std::make_move_iterator(texts.texts.begin() + 1),
                     std::make_move_iterator(texts.texts.end()));
  return whole;
}

}  // namespace shardinit
