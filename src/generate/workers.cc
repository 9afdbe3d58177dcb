#include "generate/workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <fstream>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "generate/fill.h"

namespace shardinit {
namespace {

constexpr int64_t kPage = 4096;              // What O_DIRECT wants offsets and sizes to be multiples of.
constexpr int64_t kLargestBlock = 4 << 20;   // Larger writes are no faster.
constexpr int64_t kSmallestBlock = 256 << 10;
constexpr int64_t kTile = 128 << 10;         // Generated and hashed while it is in the L2 cache.

// Adds the time of a scope to a counter.
class Timer {
 public:
  explicit Timer(std::atomic<int64_t>* ns) : ns_(ns), start_(Clock::now()) {}
  ~Timer() {
    *ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<int64_t>* ns_;
  Clock::time_point start_;
};

// The quota of a cgroup, version 2 or 1, in cores; 0: none.
double CgroupQuota() {
  double quota = -1, period = 0;
  std::string word;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> word >> period && word != "max") {
    quota = static_cast<double>(std::atoll(word.c_str()));
  } else if (std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); v1 >> quota && quota > 0) {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

int AvailableCores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  if (const double quota = CgroupQuota(); quota > 0) {
    cores = std::min(cores, static_cast<int>(quota + 0.5));
  }
  return std::max(1, cores);
}

BlockLayout BlocksFor(const WorkerOptions& options) {
  const int jobs = options.jobs > 0 ? options.jobs : AvailableCores();
  // One in each thread's hands, and as many again waiting for a hash or a disk.
  const int64_t wanted = 2 * int64_t{jobs} + 2 * int64_t{options.writers};
  const int64_t bytes =
      std::clamp(options.memory / wanted / kPage * kPage, kSmallestBlock, kLargestBlock);
  return {std::clamp<int64_t>(options.memory / bytes, 2, wanted), bytes};
}

class Workers::Pool {
 public:
  Pool(const WorkerOptions& options, WorkCounters* counters)
      : counters_(*counters), layout_(BlocksFor(options)), has_writers_(options.writers > 0) {
    const size_t size = static_cast<size_t>(layout_.count * layout_.bytes);
    memory_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      throw Error(ExitCode::kWorld, fmt::format("cannot get {} bytes of memory for blocks", size),
                  "use fewer threads (`--jobs`) or less memory (`--memory`)");
    }
    madvise(memory_, size, MADV_HUGEPAGE);
    for (int64_t i = layout_.count; i-- > 0;) {
      free_.push_back(static_cast<uint8_t*>(memory_) + i * layout_.bytes);
    }
    const int jobs = options.jobs > 0 ? options.jobs : AvailableCores();
    Start(jobs, [this] { Generate(); });
    Start(options.writers, [this] { Write(); });
  }

  ~Pool() {
    Stop();
    for (std::thread& thread : threads_) thread.join();
    munmap(memory_, static_cast<size_t>(layout_.count * layout_.bytes));
  }

  void Submit(std::vector<BoxTask> tasks, std::function<void()> done) {
    std::stable_sort(tasks.begin(), tasks.end(), [](const BoxTask& a, const BoxTask& b) {
      return Bytes(a) > Bytes(b);
    });
    auto group = std::make_shared<Group>();
    group->done = std::move(done);
    group->unfinished = static_cast<int64_t>(tasks.size());
    const bool empty = tasks.empty();
    {
      const std::lock_guard lock(mutex_);
      for (BoxTask& task : tasks) pending_.push_back({std::move(task), group});
    }
    work_.notify_all();
    if (empty) FinishGroup(group);
  }

  bool Wait(int64_t groups, int milliseconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                      [&] { return failure_ || finished_ >= groups; });
    if (failure_) std::rethrow_exception(failure_);
    return finished_ >= groups;
  }

  int64_t finished() const {
    const std::lock_guard lock(mutex_);
    return finished_;
  }

 private:
  // Boxes that were submitted together.
  struct Group {
    std::function<void()> done;
    std::atomic<int64_t> unfinished;  // Boxes.
  };

  struct Waiting {
    BoxTask task;
    std::shared_ptr<Group> group;
  };

  // A box at work.
  struct Job {
    Job(Waiting waiting, int64_t block_bytes)
        : task(std::move(waiting.task)),
          group(std::move(waiting.group)),
          filler(*task.tensor, task.box),
          block_elements(block_bytes / filler.element_bytes()),
          blocks((filler.elements() + block_elements - 1) / block_elements),
          unwritten(blocks) {}

    const BoxTask task;
    const std::shared_ptr<Group> group;
    const BoxFiller filler;
    const int64_t block_elements, blocks;
    // Under the pool's mutex:
    int64_t next_block = 0;              // To generate.
    int64_t next_hash = 0;               // To hash.
    bool hashing = false;                // Some thread holds `hash`.
    std::map<int64_t, uint8_t*> ahead;   // Generated, waiting for their turn to be hashed.
    Sha256 hash;                         // Used by the thread that set `hashing`, unlocked.
    std::atomic<int64_t> unwritten;      // Blocks, counting those not yet made.
  };
  using JobPtr = std::shared_ptr<Job>;

  struct Block {
    JobPtr job;
    int64_t index;
    uint8_t* data;
  };

  static int64_t Bytes(const BoxTask& task) {
    return ElementCount(task.box.shape) * InfoOf(task.tensor->dtype).bytes;
  }

  template <typename Body>
  void Start(int count, Body body) {
    for (int i = 0; i < count; ++i) {
      try {
        threads_.emplace_back([this, body] {
          try {
            body();
          } catch (...) {
            Fail(std::current_exception());
          }
        });
      } catch (const std::system_error&) {
        // Fewer threads do the same work, as long as there is one.
        if (i == 0) {
          Stop();
          for (std::thread& thread : threads_) thread.join();
          throw Error(ExitCode::kWorld, "cannot start a thread", "raise `ulimit -u`");
        }
        return;
      }
    }
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    work_.notify_all();
    writes_.notify_all();
    changed_.notify_all();
  }

  void Fail(std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = failure;
    }
    Stop();
  }

  // The life of a generating thread.
  void Generate() {
    JobPtr job;  // The one it keeps to.
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return stopped_ || (!free_.empty() && PickJob(&job)); });
      if (stopped_) return;
      Block block{job, job->next_block++, free_.back()};
      free_.pop_back();
      if (job->next_block == job->blocks) active_.remove(job);
      const bool in_turn = !job->hashing && job->next_hash == block.index;
      if (in_turn) job->hashing = true;
      lock.unlock();
      MakeBlock(block, in_turn);
      lock.lock();
      if (!in_turn) {
        job->ahead.emplace(block.index, block.data);
        if (job->hashing || job->ahead.begin()->first != job->next_hash) continue;
        job->hashing = true;
      } else {
        ++job->next_hash;
        Pass(block, lock);
      }
      HashAhead(job, lock);
    }
  }

  // Needs the lock. The job to make a block of next: the thread's own, else a
  // new one, else another thread's.
  bool PickJob(JobPtr* job) {
    if (*job && (*job)->next_block < (*job)->blocks) return true;
    if (!pending_.empty()) {
      *job = std::make_shared<Job>(std::move(pending_.front()), layout_.bytes);
      pending_.pop_front();
      active_.push_back(*job);
      return true;
    }
    if (active_.empty()) return false;
    *job = active_.front();
    return true;
  }

  // Generates one block and, if it is that block's turn, hashes it while hot.
  void MakeBlock(const Block& block, bool hash) {
    Job& job = *block.job;
    const int64_t size = job.filler.element_bytes();
    const int64_t first = block.index * job.block_elements;
    const int64_t count = std::min(job.block_elements, job.filler.elements() - first);
    const int64_t tile = hash ? kTile / size : count;
    for (int64_t done = 0; done < count; done += tile) {
      const int64_t n = std::min(tile, count - done);
      uint8_t* out = block.data + done * size;
      {
        const Timer timer(&counters_.generate_ns);
        job.filler.Fill(first + done, n, out);
      }
      counters_.generated_bytes += n * size;
      if (hash) Hash(job, out, n * size);
    }
  }

  void Hash(Job& job, const uint8_t* data, int64_t bytes) {
    const Timer timer(&counters_.hash_ns);
    job.hash.Update(data, static_cast<size_t>(bytes));
    counters_.hashed_bytes += bytes;
  }

  int64_t BytesOf(const Block& block) const {
    const Job& job = *block.job;
    const int64_t first = block.index * job.block_elements;
    return std::min(job.block_elements, job.filler.elements() - first) * job.filler.element_bytes();
  }

  // Holding the lock and the job's hash: hashes what others generated ahead, as
  // far as it goes without a gap, and lets go of the hash.
  void HashAhead(const JobPtr& job, std::unique_lock<std::mutex>& lock) {
    while (!job->ahead.empty() && job->ahead.begin()->first == job->next_hash) {
      const Block block{job, job->next_hash, job->ahead.begin()->second};
      job->ahead.erase(job->ahead.begin());
      lock.unlock();
      Hash(*job, block.data, BytesOf(block));
      lock.lock();
      ++job->next_hash;
      Pass(block, lock);
    }
    job->hashing = false;
  }

  // Holding the lock: a hashed block goes to the writers, or is done with. The
  // last block of a box settles its digest first.
  void Pass(const Block& block, std::unique_lock<std::mutex>& lock) {
    Job& job = *block.job;
    if (job.next_hash == job.blocks) *job.task.digest = job.hash.Finish();
    if (job.task.output.fd >= 0) {
      Check(has_writers_, "a file to write to, but no writers");
      unwritten_.push_back(block);
      writes_.notify_one();
      return;
    }
    lock.unlock();
    FinishBlock(block);
    lock.lock();
  }

  // The life of a writing thread.
  void Write() {
    while (true) {
      Block block;
      {
        std::unique_lock lock(mutex_);
        writes_.wait(lock, [this] { return stopped_ || !unwritten_.empty(); });
        if (stopped_) return;
        block = std::move(unwritten_.front());
        unwritten_.pop_front();
      }
      WriteBlock(block);
      FinishBlock(block);
    }
  }

  void WriteBlock(const Block& block) {
    const Timer timer(&counters_.write_ns);
    const BoxOutput& out = block.job->task.output;
    const int64_t bytes = BytesOf(block);
    const int64_t offset =
        out.offset + block.index * block.job->block_elements * block.job->filler.element_bytes();
    int64_t direct = 0;
    // Only whole pages: a padded tail would overwrite what lies behind the box.
    if (out.direct >= 0 && offset % kPage == 0) {
      direct = bytes / kPage * kPage;
      if (direct > 0 && !WriteAll(out.direct, block.data, static_cast<size_t>(direct), offset)) {
        if (errno != EINVAL) Throw(*block.job);
        direct = 0;  // This file system refuses it after all.
      }
    }
    if (direct < bytes && !WriteAll(out.fd, block.data + direct, static_cast<size_t>(bytes - direct),
                                    offset + direct)) {
      Throw(*block.job);
    }
    counters_.written_bytes += bytes;
    counters_.direct_bytes += direct;
  }

  [[noreturn]] static void Throw(const Job& job) {
    throw SystemError("write", *job.task.output.path);
  }

  void FinishBlock(const Block& block) {
    const std::shared_ptr<Group> group = block.job->group;
    const bool last = --block.job->unwritten == 0;
    {
      const std::lock_guard lock(mutex_);
      free_.push_back(block.data);
    }
    work_.notify_one();
    if (last && --group->unfinished == 0) FinishGroup(group);
  }

  void FinishGroup(const std::shared_ptr<Group>& group) {
    if (group->done) group->done();
    group->done = nullptr;  // Lets go of what it holds, such as open files.
    {
      const std::lock_guard lock(mutex_);
      ++finished_;
    }
    changed_.notify_all();
  }

  WorkCounters& counters_;
  const BlockLayout layout_;
  const bool has_writers_;
  void* memory_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable work_;     // A free block, a new task.
  std::condition_variable writes_;   // A block to write.
  std::condition_variable changed_;  // A group finished, or a failure.
  std::vector<uint8_t*> free_;
  std::deque<Waiting> pending_;
  std::list<JobPtr> active_;         // With blocks left to generate.
  std::deque<Block> unwritten_;
  int64_t finished_ = 0;  // Groups.
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

Workers::Workers(const WorkerOptions& options, WorkCounters* counters)
    : pool_(std::make_unique<Pool>(options, counters)) {}
Workers::~Workers() = default;
void Workers::Submit(std::vector<BoxTask> tasks, std::function<void()> done) {
  pool_->Submit(std::move(tasks), std::move(done));
}
bool Workers::Wait(int64_t groups, int milliseconds) { return pool_->Wait(groups, milliseconds); }
int64_t Workers::finished_groups() const { return pool_->finished(); }

}  // namespace shardinit
