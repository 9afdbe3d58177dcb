// Tests that threads, memory and block sizes do not affect results, and that failures end the work.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/new_file.h"
#include "base/parallel.h"
#include "generate/fill.h"
#include "generate/workers.h"
#include "support/random_plan.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

using Files = std::map<std::string, std::string>;

constexpr int kPatience = 60'000;  // Milliseconds: only a hang takes that long.

struct Work {
  std::vector<Tensor> tensors;
  std::vector<Box> boxes;  // Box i is a part of tensor i.

  void Add(Tensor tensor, Box box) {
    tensors.push_back(std::move(tensor));
    boxes.push_back(std::move(box));
  }
  void Add(Tensor tensor) {
    Box box = WholeOf(tensor.shape());
    Add(std::move(tensor), std::move(box));
  }
  int64_t BytesOf(size_t i) const {
    return ElementCount(boxes[i].shape) * InfoOf(tensors[i].dtype()).bytes;
  }
};

// The boxes are below, at and above the sizes of tiles, blocks and pages.
Work MixedWork() {
  Work work;
  work.Add(MakeTensor("large", DType::f32, {1 << 20}, Uniform{0, 1}));  // 4 MiB
  work.Add(MakeTensor("cut", DType::bf16, {1500, 700}, Normal{0, 0.02}), {{3, 5}, {1401, 689}});
  work.Add(MakeTensor("wide", DType::f64, {70'001}, TruncatedNormal{0, 1, -2, 2}));
  work.Add(MakeTensor("constant", DType::f16, {333, 1001}, Constant{1.5}));
  work.Add(MakeTensor("scalar", DType::f32, {}, Normal{0, 1}));
  work.Add(MakeTensor("block", DType::f32, {64 << 10}, Uniform{-1, 1}));
  work.Add(MakeTensor("page", DType::f32, {1024}, Uniform{-1, 1}));
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    work.Add(
        MakeTensor("small" + std::to_string(i), DType::bf16, {random.In(1, 300)}, Normal{0, 1}));
  }
  return work;
}

// Computes one box after the other, without workers.
std::vector<Digest> ExpectedDigests(const Work& work, std::string* file,
                                    std::vector<int64_t>* offsets) {
  std::vector<Digest> digests;
  for (size_t i = 0; i < work.tensors.size(); ++i) {
    const BoxFiller filler(work.tensors[i], work.boxes[i]);
    // Some boxes begin at pages, to try direct writes; others begin at any offset.
    const size_t gap = i % 3 == 0 ? 4096 - file->size() % 4096 : 8 - file->size() % 8;
    file->append(gap, '.');
    offsets->push_back(static_cast<int64_t>(file->size()));
    std::string bytes(static_cast<size_t>(work.BytesOf(i)), '\0');
    filler.Fill(0, filler.elements(), bytes.data());
    digests.push_back(Sha256Of(bytes));
    *file += bytes;
  }
  *file += "end";
  return digests;
}

std::string Describe(const WorkerOptions& options) {
  return fmt::format("jobs {} writers {} memory {} in order {}", options.jobs, options.writers,
                     options.memory, options.in_order);
}

std::vector<WorkerOptions> ManyOptions(bool writing) {
  std::vector<WorkerOptions> all;
  for (const int jobs : {1, 2, 7}) {
    for (const int writers : {0, 1, 4}) {
      if ((writers > 0) != writing) continue;
      // The memory fits two blocks of the smallest size, odd sizes in between, or too much.
      for (const int64_t memory :
           {int64_t{1}, int64_t{3'000'000}, int64_t{7} << 20, int64_t{64} << 20}) {
        all.push_back(
            {.jobs = jobs, .writers = writers, .memory = memory, .in_order = all.size() % 2 == 1});
      }
    }
  }
  return all;
}

TEST(Workers, DigestsDoNotDependOnWorkerOptions) {
  const Work work = MixedWork();
  std::string file;
  std::vector<int64_t> offsets;
  const std::vector<Digest> expected = ExpectedDigests(work, &file, &offsets);
  int64_t total = 0;
  for (size_t i = 0; i < work.tensors.size(); ++i) total += work.BytesOf(i);
  for (const WorkerOptions& options : ManyOptions(false)) {
    SCOPED_TRACE(Describe(options));
    std::vector<Digest> digests(work.tensors.size());
    std::vector<BoxTask> tasks;
    for (size_t i = 0; i < work.tensors.size(); ++i) {
      tasks.push_back({&work.tensors[i], work.boxes[i], {}, &digests[i]});
    }
    WorkCounters counters;
    Workers workers(options, &counters);
    workers.Submit(std::move(tasks), nullptr);
    ASSERT_TRUE(workers.Wait(1, kPatience));
    EXPECT_TRUE(digests == expected);
    EXPECT_EQ(counters.generated_bytes, total);
    EXPECT_EQ(counters.hashed_bytes, total);
    EXPECT_EQ(counters.written_bytes, 0);
  }
}

TEST(Workers, FilesDoNotDependOnWorkerOptions) {
  const Work work = MixedWork();
  std::string expected_file;
  std::vector<int64_t> offsets;
  const std::vector<Digest> expected = ExpectedDigests(work, &expected_file, &offsets);
  const std::string path = "out";
  for (const WorkerOptions& options : ManyOptions(true)) {
    SCOPED_TRACE(Describe(options));
    // Bytes outside of all boxes must not change.
    const WorkingFolder scratch(Files{});
    const Folder folder = Folder::Open(".");
    OutputFile file(folder, path);
    file.Append(std::string(expected_file.size() - 3, '.'));
    file.Append("end");
    file.Reserve(std::ssize(expected_file));
    std::vector<Digest> digests(work.tensors.size());
    std::vector<BoxTask> tasks;
    for (size_t i = 0; i < work.tensors.size(); ++i) {
      tasks.push_back({&work.tensors[i], work.boxes[i], {&file, offsets[i]}, &digests[i]});
    }
    WorkCounters counters;
    std::string seen_by_done;
    {
      Workers workers(options, &counters);
      workers.Submit(std::move(tasks), [&] { seen_by_done = ReadFile(path); });
      ASSERT_TRUE(workers.Wait(1, kPatience));
      EXPECT_EQ(workers.finished_groups(), 1);
    }
    EXPECT_TRUE(digests == expected);
    EXPECT_TRUE(seen_by_done == expected_file);
    EXPECT_TRUE(ReadFile(path) == expected_file);
    EXPECT_EQ(counters.written_bytes, counters.generated_bytes);
    EXPECT_LE(counters.direct_bytes, counters.written_bytes);
  }
}

TEST(Workers, DirectWritesCoverOnlyWholePages) {
  const Tensor tensor = MakeTensor("t", DType::f32, {300'000}, Normal{0, 1});
  const WorkingFolder scratch(Files{});
  const Folder folder = Folder::Open(".");
  OutputFile file(folder, "a");
  file.Reserve(2'000'000);
  Digest digest;
  WorkCounters counters;
  Workers workers({.jobs = 2, .writers = 2, .memory = 1 << 20}, &counters);
  workers.Submit({{&tensor, WholeOf(tensor.shape()), {&file, 100}, &digest}}, nullptr);
  ASSERT_TRUE(workers.Wait(1, kPatience));
  EXPECT_EQ(counters.direct_bytes, 0);
  EXPECT_EQ(Sha256Of(std::string_view(ReadFile("a")).substr(100, 1'200'000)), digest);
}

// A failed write to the disk is reported.
TEST(Workers, WorkersReportFailedWrites) {
  const Tensor tensor = MakeTensor("t", DType::f32, {300'000}, Normal{0, 1});
  const WorkingFolder scratch(Files{});
  const Folder folder = Folder::Open(".");
  const OutputFile file(folder, "a");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {500'000, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Digest digest;
  WorkCounters counters;
  {
    Workers workers({.jobs = 2, .writers = 2, .memory = 1 << 20}, &counters);
    workers.Submit({{&tensor, WholeOf(tensor.shape()), {&file, 0}, &digest}}, nullptr);
    EXPECT_THROW(workers.Wait(1, kPatience), Error);
  }
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
}

TEST(Workers, WorkersHashBlocksInOrder) {
  constexpr int64_t kBlocks = 12;
  const WorkerOptions options{.jobs = 2, .memory = 4 << 20};
  const int64_t block = BlocksFor(options).bytes;
  ASSERT_GE(BlocksFor(options).count, 5);
  const Tensor tensor = MakeTensor("t", DType::u8, {kBlocks * block}, Constant{0});
  std::string expected;
  for (int64_t b = 0; b < kBlocks; ++b) {
    expected.append(static_cast<size_t>(block), static_cast<char>('a' + b));
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> begun(kBlocks);
  bool in_time = true;
  const auto source = [&](int64_t first, int64_t count, void* out) {
    {
      std::unique_lock lock(mutex);
      begun[static_cast<size_t>(first / block)] = true;
      changed.notify_all();
      const int64_t until = first == 0 ? 1 : first == block ? 3 : -1;
      in_time &= until < 0 || changed.wait_for(lock, std::chrono::milliseconds(kPatience),
                                               [&] { return begun[static_cast<size_t>(until)]; });
    }
    std::memcpy(out, expected.data() + first, static_cast<size_t>(count));
  };
  Digest digest;
  WorkCounters counters;
  Workers workers(options, &counters);
  workers.Submit({{&tensor, WholeOf(tensor.shape()), {}, &digest, source}}, nullptr);
  ASSERT_TRUE(workers.Wait(1, 2 * kPatience));
  ASSERT_TRUE(in_time) << "the blocks were not made in the order that this test is for";
  EXPECT_EQ(ToHex(digest), ToHex(Sha256Of(expected)));
}

TEST(Workers, ThreadsShareOneLargeBox) {
  const Tensor tensor = MakeTensor("large", DType::f32, {16 << 20}, Uniform{0, 1});  // 64 MiB
  std::vector<Digest> digests(3);
  size_t i = 0;
  for (const int jobs : {1, 2, 7}) {
    WorkCounters counters;
    Workers workers({.jobs = jobs, .memory = 8 << 20}, &counters);
    workers.Submit({{&tensor, WholeOf(tensor.shape()), {}, &digests[i++]}}, nullptr);
    ASSERT_TRUE(workers.Wait(1, kPatience));
    EXPECT_EQ(counters.hashed_bytes, 64 << 20);
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
}

TEST(Workers, WorkersHandleManyTinyBoxes) {
  constexpr int kGroups = 50, kBoxes = 400;
  std::vector<Tensor> tensors;
  for (int i = 0; i < kBoxes; ++i) {
    tensors.push_back(MakeTensor("t" + std::to_string(i), DType::bf16, {i % 7 + 1}, Normal{0, 1}));
  }
  std::vector<Digest> expected;
  for (const Tensor& tensor : tensors) {
    const BoxFiller filler(tensor, WholeOf(tensor.shape()));
    std::string bytes(static_cast<size_t>(tensor.bytes()), '\0');
    filler.Fill(0, filler.elements(), bytes.data());
    expected.push_back(Sha256Of(bytes));
  }
  for (const int jobs : {1, 7}) {
    std::vector<std::vector<Digest>> digests(kGroups, std::vector<Digest>(kBoxes));
    std::atomic<int> done{0};
    WorkCounters counters;
    Workers workers({.jobs = jobs, .memory = 1 << 20}, &counters);
    for (auto& group : digests) {
      std::vector<BoxTask> tasks;
      for (size_t i = 0; i < kBoxes; ++i) {
        tasks.push_back({&tensors[i], WholeOf(tensors[i].shape()), {}, &group[i]});
      }
      workers.Submit(std::move(tasks), [&done] { ++done; });
    }
    ASSERT_TRUE(workers.Wait(kGroups, kPatience));
    EXPECT_EQ(done, kGroups);
    EXPECT_EQ(workers.finished_groups(), kGroups);
    for (const auto& group : digests) EXPECT_TRUE(group == expected);
  }
}

// Digests do not depend on how many matrices fit in memory: all, some, or not even one. The
// matrices are made whole, for the boxes of several ranks.
TEST(Workers, DigestsDoNotDependOnMatricesInMemory) {
  Work work;
  for (int i = 0; i < 5; ++i) {
    const Tensor tensor = MakeTensor(fmt::format("q{}", i), DType::f32, {40 + 8 * i, 48},
                                     Orthogonal{.gain = 1, .rows = 1, .columns = 2});
    for (int64_t rank = 0; rank < 4; ++rank) work.Add(tensor, {{10 * rank, 0}, {10, 48}});
    work.Add(MakeTensor(fmt::format("n{}", i), DType::f32, {100}, Normal{0, 1}));
  }
  std::string file;
  std::vector<int64_t> offsets;
  const std::vector<Digest> expected = ExpectedDigests(work, &file, &offsets);
  for (const int jobs : {1, 3}) {
    for (const int64_t memory : {1, 40'000, 1 << 20, -1, -40'000}) {
      const WorkerOptions options{.jobs = jobs, .memory = std::abs(memory), .in_order = memory < 0};
      SCOPED_TRACE(Describe(options));
      std::vector<Digest> digests(work.tensors.size());
      WorkCounters counters;
      Workers workers(options, &counters);
      for (size_t group = 0; group < 5; ++group) {
        std::vector<BoxTask> tasks;
        for (size_t i = group; i < work.tensors.size(); i += 5) {
          // All boxes with the same path share one tensor, as in a plan.
          const auto tensor =
              std::find_if(work.tensors.begin(), work.tensors.end(),
                           [&](const Tensor& t) { return t.path() == work.tensors[i].path(); });
          tasks.push_back({&*tensor, work.boxes[i], {}, &digests[i]});
        }
        workers.Submit(std::move(tasks), nullptr);
      }
      ASSERT_TRUE(workers.Wait(5, kPatience));
      EXPECT_TRUE(digests == expected);
    }
  }
}

// Counts the parts of a file that are begun but not complete.
class BegunParts : public Sink {
 public:
  explicit BegunParts(int64_t part) : part_(part) {}

  int64_t Write(const void*, int64_t bytes, int64_t offset) const override {
    const std::lock_guard lock(mutex_);
    for (const int64_t end = offset + bytes; offset < end;) {
      const int64_t number = offset / part_, next = std::min(end, (number + 1) * part_);
      if ((begun_[number] += next - offset) == part_) begun_.erase(number);
      offset = next;
    }
    most_ = std::max(most_, begun_.size());
    return 0;
  }
  size_t most() const { return most_; }

 private:
  const int64_t part_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, int64_t> begun_;
  mutable size_t most_ = 0;
};

TEST(Workers, WorkersStartFewPartsOfAFileInOrder) {
  constexpr int64_t kPart = 1 << 20, kParts = 64;
  // Each part has a large box, a box whose matrix is made whole, and many small boxes.
  std::vector<Tensor> tensors;
  for (int64_t i = 0; i < kParts; ++i) {
    tensors.push_back(MakeTensor(fmt::format("l{}", i), DType::f32, {200'000}, Normal{0, 1}));
    tensors.push_back(MakeTensor(fmt::format("q{}", i), DType::f32, {16, 16},
                                 Orthogonal{.gain = 1, .rows = 1, .columns = 2}));
    int64_t left = kPart - 800'000 - 1024;
    for (int n = 0; left > 0; ++n) {
      const int64_t bytes = std::min<int64_t>(left, 40'000);
      tensors.push_back(
          MakeTensor(fmt::format("s{}.{}", i, n), DType::f32, {bytes / 4}, Normal{0, 1}));
      left -= bytes;
    }
  }
  for (const bool in_order : {true, false}) {
    const BegunParts file(kPart);
    std::vector<Digest> digests(tensors.size());
    std::vector<BoxTask> tasks;
    int64_t offset = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      tasks.push_back({&tensors[i], WholeOf(tensors[i].shape()), {&file, offset}, &digests[i]});
      offset += tensors[i].bytes();
    }
    ASSERT_EQ(offset, kPart * kParts);
    WorkCounters counters;
    Workers workers({.jobs = 2, .writers = 2, .memory = 4 << 20, .in_order = in_order}, &counters);
    workers.Submit(std::move(tasks), nullptr);
    ASSERT_TRUE(workers.Wait(1, kPatience));
    // Starting with the largest boxes would begin every part of the file.
    if (in_order) {
      EXPECT_LE(file.most(), 16u);
    } else {
      EXPECT_GE(file.most(), 48u);
    }
  }
}

// If a pass is the only work, which many threads cannot share, its thread gets each block that
// becomes free.
TEST(Workers, PassGetsEachBlockThatBecomesFree) {
  struct Nowhere : Sink {
    int64_t Write(const void*, int64_t, int64_t) const override { return 0; }
  };
  struct Steps : BoxPass {
    explicit Steps(const Sink* sink) : sink(sink) {}
    int64_t bytes() const override { return 1; }
    int64_t Make(uint8_t* memory, int64_t, std::vector<BoxWrite>* writes) override {
      writes->push_back({sink, memory, 1, 0});
      return --left, 1;
    }
    bool IsDone() const override { return left == 0; }

    const Sink* const sink;
    int64_t left = 20'000;
  };
  const Tensor tensor = MakeTensor("t", DType::f32, {1}, Normal{0, 1});
  const Nowhere sink;
  WorkCounters counters;
  Workers workers({.jobs = 12, .writers = 4, .memory = 1}, &counters);
  BoxTask task = {&tensor, WholeOf(tensor.shape()), {}, nullptr};
  task.pass = std::make_shared<Steps>(&sink);
  workers.Submit({std::move(task)}, nullptr);
  ASSERT_TRUE(workers.Wait(1, kPatience));
  EXPECT_EQ(counters.written_bytes, 20'000);
}

TEST(Workers, EmptyGroupIsDoneAtOnce) {
  WorkCounters counters;
  Workers workers({.jobs = 1, .memory = 1}, &counters);
  bool done = false;
  workers.Submit({}, [&] { done = true; });
  EXPECT_TRUE(workers.Wait(1, kPatience));
  EXPECT_TRUE(done);
  EXPECT_TRUE(workers.Wait(0, 0));
  EXPECT_FALSE(workers.Wait(2, 1));
}

TEST(Workers, FinishedGroupReleasesItsResources) {
  const Tensor tensor = MakeTensor("t", DType::f32, {10}, Normal{0, 1});
  Digest digest;
  WorkCounters counters;
  Workers workers({.jobs = 2, .memory = 1}, &counters);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  workers.Submit({{&tensor, WholeOf(tensor.shape()), {}, &digest}}, [held = std::move(held)] {});
  ASSERT_TRUE(workers.Wait(1, kPatience));
  EXPECT_TRUE(watch.expired());
}

TEST(Workers, FailedWriteIsReportedAndStopsTheRest) {
  struct FullFile : OutputFile {
    FullFile() : OutputFile("out/x.h5", OpenAt(AT_FDCWD, "/dev/full", O_WRONLY)) {}
  };
  const FullFile full;
  if (full.fd() < 0) GTEST_SKIP() << "no /dev/full here";
  std::vector<Tensor> tensors;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(MakeTensor("t" + std::to_string(i), DType::f32, {1 << 18}, Normal{0, 1}));
  }
  for (const int jobs : {1, 2, 7}) {
    std::vector<Digest> digests(tensors.size());
    std::vector<BoxTask> tasks;
    for (size_t i = 0; i < tensors.size(); ++i) {
      tasks.push_back({&tensors[i], WholeOf(tensors[i].shape()), {&full, 0}, &digests[i]});
    }
    WorkCounters counters;
    std::atomic<bool> done{false};
    {
      Workers workers({.jobs = jobs, .writers = 1, .memory = 1 << 20}, &counters);
      workers.Submit(std::move(tasks), [&] { done = true; });
      try {
        workers.Wait(1, kPatience);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kWorld);
        EXPECT_STREQ(error.what(), "cannot write `out/x.h5`: No space left on device");
      }
      // It stays failed, so that no caller can mistake it for finished.
      EXPECT_THROW(workers.Wait(1, 0), Error);
      EXPECT_THROW(workers.Wait(0, 0), Error);
    }
    EXPECT_FALSE(done);
    EXPECT_EQ(counters.written_bytes, 0);
    EXPECT_LT(counters.generated_bytes, 40 << 20);
  }
}

TEST(Workers, FailureOfTheDoneCallbackIsReported) {
  const Tensor tensor = MakeTensor("t", DType::f32, {10}, Normal{0, 1});
  Digest digest;
  WorkCounters counters;
  Workers workers({.jobs = 2, .memory = 1}, &counters);
  workers.Submit({{&tensor, WholeOf(tensor.shape()), {}, &digest}},
                 [] { throw Error(ExitCode::kWorld, "no commit"); });
  EXPECT_THROW(workers.Wait(1, kPatience), Error);
}

TEST(Workers, WorkersStopWithoutStartingTheRest) {
  const Tensor tensor = MakeTensor("t", DType::f32, {1 << 16}, Normal{0, 1});
  std::vector<Digest> digests(20'000);  // 5 GB of work.
  WorkCounters counters;
  {
    Workers workers({.jobs = 2, .memory = 1 << 20}, &counters);
    std::vector<BoxTask> tasks;
    for (Digest& digest : digests) tasks.push_back({&tensor, WholeOf(tensor.shape()), {}, &digest});
    workers.Submit(std::move(tasks), nullptr);
  }
  EXPECT_LT(counters.generated_bytes, int64_t{1} << 30);
}

TEST(BlocksFor, BlocksStayWithinTheMemoryLimit) {
  for (const int jobs : {1, 2, 7, 64, 1024}) {
    for (const int writers : {0, 4}) {
      for (int64_t memory = 1; memory <= int64_t{1} << 34; memory *= 3) {
        const BlockLayout layout = BlocksFor({.jobs = jobs, .writers = writers, .memory = memory});
        EXPECT_GE(layout.count, 2);
        EXPECT_EQ(layout.bytes % 4096, 0);
        // At least two blocks of the smallest size are needed.
        EXPECT_LE(layout.count * layout.bytes, std::max<int64_t>(memory, 512 << 10));
      }
    }
  }
}

TEST(AvailableCores, AvailableCoresAreAtLeastOne) { EXPECT_GE(AvailableCores(), 1); }

}  // namespace
}  // namespace shardinit
