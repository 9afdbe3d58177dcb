// Tests groups of files that end in any order, just when the next file asks for room.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/file_tasks.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

// Each file is a separate group, which is checked when its boxes are made.
class EachAlone final : public TaskSource {
 public:
  bool IsEnough(const std::vector<BoxTask>&) override { return true; }
  std::function<void()> Open(std::vector<BoxTask>*) override {
    return [this] { ++checked_; };
  }
  int64_t checked() const { return checked_; }

 private:
  std::atomic<int64_t> checked_{0};
};

// A file takes about as long as a thread needs to ask for room and fall asleep.
TEST(FileGroups, NoThreadWaitsForAFinishedFile) {
  const Tensor tensor = MakeTensor("one", DType::f32, {64}, Uniform{0, 1});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  EachAlone source;
  WorkCounters counters;
  std::vector<Digest> digests(2);
  std::atomic<int64_t> done = 0;
  int64_t seen = 0, ticks = 0, files = 0;
  FileGroups groups({.jobs = 2, .memory = 1 << 20}, &counters, &source, 2, [&](int64_t now) {
    ticks = now == std::exchange(seen, now) ? ticks + 1 : 0;
    if (ticks == 100) throw std::runtime_error("no file was done in ten seconds");
  });
  for (; std::chrono::steady_clock::now() < end; ++files) {
    groups.WaitForRoom();
    ASSERT_LT(files - done, 2);
    std::vector<BoxTask> tasks;
    for (int64_t t = 0; t < files % 3; ++t) {
      tasks.push_back({&tensor, WholeOf(tensor.shape()), {}, &digests[static_cast<size_t>(t)]});
    }
    groups.Add(std::move(tasks), [&] { ++done; });
  }
  groups.Finish();
  EXPECT_EQ(done, files);
  EXPECT_EQ(source.checked(), files);
  EXPECT_GT(files, 1000);
}

// The check of the first group lasts until the check of the second group is done.
class SecondIsFaster final : public TaskSource {
 public:
  bool IsEnough(const std::vector<BoxTask>&) override { return true; }
  std::function<void()> Open(std::vector<BoxTask>*) override {
    return [this, is_first = opened_++ == 0] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (is_first && checked_ == 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (is_first) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ++checked_;
    };
  }

 private:
  int64_t opened_ = 0;
  std::atomic<int64_t> checked_{0};
};

TEST(FileGroups, FilesFinishAfterTheSourcesOfEarlierFilesAreChecked) {
  const Tensor tensor = MakeTensor("one", DType::f32, {64}, Uniform{0, 1});
  SecondIsFaster source;
  WorkCounters counters;
  std::vector<Digest> digests(2);
  std::mutex mutex;
  std::vector<size_t> done;
  FileGroups groups({.jobs = 2, .memory = 1 << 20}, &counters, &source, 2, nullptr);
  for (size_t f = 0; f < 2; ++f) {
    groups.WaitForRoom();
    groups.Add({{&tensor, WholeOf(tensor.shape()), {}, &digests[f]}}, [&, f] {
      const std::lock_guard lock(mutex);
      done.push_back(f);
    });
  }
  groups.Finish();
  EXPECT_EQ(done, (std::vector<size_t>{0, 1}));
}

}  // namespace
}  // namespace shardinit
