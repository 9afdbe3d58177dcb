#include "generate/workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "generate/fill.h"

namespace shardinit {
namespace {

constexpr int64_t kPage = 4096;  // What O_DIRECT wants offsets and sizes to be multiples of.
constexpr int64_t kLargestBlock = 4 << 20;  // Larger writes are no faster.
constexpr int64_t kSmallestBlock = 256 << 10;
constexpr int64_t kTileBytes = 128 << 10;  // Generated and hashed while it is in the L2 cache.

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

}  // namespace

BlockLayout BlocksFor(const WorkerOptions& options) {
  const int jobs = options.jobs > 0 ? options.jobs : AvailableCores();
  // Two in each generating thread's hands, one more waiting for its hash; for
  // each writer one in its hands and one waiting.
  const int64_t wanted = 3 * int64_t{jobs} + 2 * int64_t{options.writers};
  const int64_t bytes =
      std::clamp(options.memory / wanted / kPage * kPage, kSmallestBlock, kLargestBlock);
  return {std::clamp<int64_t>(options.memory / bytes, 2, wanted), bytes};
}

class Workers::Pool {
 public:
  Pool(const WorkerOptions& options, WorkCounters* counters)
      : counters_(*counters),
        layout_(BlocksFor(options)),
        has_writers_(options.writers > 0),
        preparations_(options.memory, [](const Tensor& drawn) {
          return std::shared_ptr<const Filler>(FillerOf(drawn));
        }) {
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
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const BoxTask& a, const BoxTask& b) { return Bytes(a) > Bytes(b); });
    auto group = std::make_shared<Group>();
    group->done = std::move(done);
    group->unfinished = static_cast<int64_t>(tasks.size());
    const bool empty = tasks.empty();
    {
      const std::lock_guard lock(mutex_);
      for (BoxTask& task : tasks) {
        std::vector<Preparation> needs = PreparationsOf(*task.tensor, task.box);
        auto& queue = needs.empty() ? pending_ : pending_prepared_;
        queue.push_back({std::move(task), group, std::move(needs)});
      }
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
    std::vector<Preparation> needs;
  };

  // A box at work.
  struct Job {
    Job(Waiting waiting, int64_t block_bytes)
        : task(std::move(waiting.task)),
          group(std::move(waiting.group)),
          needs(std::move(waiting.needs)),
          filler(*task.tensor, task.box),
          block_elements(block_bytes / filler.element_bytes()),
          blocks((filler.elements() + block_elements - 1) / block_elements),
          unwritten(blocks) {}

    const BoxTask task;
    const std::shared_ptr<Group> group;
    const std::vector<Preparation> needs;
    const BoxFiller filler;
    const int64_t block_elements, blocks;
    // Under the pool's mutex:
    int64_t next_block = 0;             // To generate.
    int64_t next_hash = 0;              // To hash.
    bool hashing = false;               // Some thread holds `hash`.
    std::map<int64_t, uint8_t*> ahead;  // Generated, waiting for their turn to be hashed.
    Sha256 hash;                        // Used by the thread that set `hashing`, unlocked.
    std::atomic<int64_t> unwritten;     // Blocks, counting those not yet made.
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

  // What a generating thread is doing for one of two boxes: a block that it makes,
  // hashes, or both.
  struct Lane {
    JobPtr job;  // The one it keeps to while there is work.
    Block block;
    bool busy = false;
    bool hash = false;  // The block is next in turn, and this thread holds the job's hash.
    int64_t made = 0;   // Bytes of the block.
    int64_t hashed = 0;
    int64_t bytes = 0;  // Of the block.
  };

  // The life of a generating thread. It works on two boxes at once, since hashing
  // two takes the time of one.
  void Generate() {
    Lane lanes[2];
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return stopped_ || FillLanes(lanes) || PickPreparation(); });
      if (stopped_) return;
      if (!lanes[0].busy && !lanes[1].busy) {
        for (Lane& lane : lanes) lane.job = nullptr;
        Prepare(lock);
        continue;
      }
      lock.unlock();
      while (Advance(lanes[0], lanes[1])) {
      }
      lock.lock();
      for (Lane& lane : lanes) {
        if (lane.busy && IsDone(lane)) Settle(&lane, lock);
      }
    }
  }

  // Needs the lock. Gives idle lanes something to do; whether there is anything.
  bool FillLanes(Lane (&lanes)[2]) {
    for (int i = 0; i < 2; ++i) {
      Lane &lane = lanes[i], &other = lanes[1 - i];
      if (lane.busy) continue;
      if (lane.job && Take(&lane)) continue;
      // What it has prepared must not outlive it here.
      if (lane.job && lane.job->next_hash == lane.job->blocks) lane.job = nullptr;
      if (!other.busy && other.job && (std::swap(lane.job, other.job), Take(&lane))) continue;
      if (free_.empty()) continue;
      if (!pending_.empty()) {
        lane.job = std::make_shared<Job>(std::move(pending_.front()), layout_.bytes);
        pending_.pop_front();
        active_.push_back(lane.job);
        Take(&lane);
      } else if (!other.busy && !active_.empty()) {
        // Generates ahead for the box whose hash has the least to go on with.
        lane.job = *std::min_element(
            active_.begin(), active_.end(),
            [](const JobPtr& a, const JobPtr& b) { return a->ahead.size() < b->ahead.size(); });
        Take(&lane);
      }
    }
    return lanes[0].busy || lanes[1].busy;
  }

  // Needs the lock. The next thing to do for the lane's job: to hash a block that
  // others made ahead, else to make one.
  bool Take(Lane* lane) {
    Job& job = *lane->job;
    const bool ready =
        !job.hashing && !job.ahead.empty() && job.ahead.begin()->first == job.next_hash;
    if (ready) {
      lane->block = {lane->job, job.next_hash, job.ahead.begin()->second};
      job.ahead.erase(job.ahead.begin());
    } else if (job.next_block < job.blocks && !free_.empty()) {
      lane->block = {lane->job, job.next_block++, free_.back()};
      free_.pop_back();
      if (job.next_block == job.blocks) active_.remove(lane->job);
    } else {
      return false;
    }
    lane->busy = true;
    lane->hash = !job.hashing && job.next_hash == lane->block.index;
    if (lane->hash) job.hashing = true;
    lane->bytes = BytesOf(lane->block);
    lane->made = ready ? lane->bytes : 0;
    lane->hashed = 0;
    return true;
  }

  // Needs the lock. Whether there is a job whose filler wants to be prepared: one
  // at a time, by all threads that have nothing better to do. Those that need only
  // what is held already go first.
  bool PickPreparation() {
    if (!preparing_.empty()) return true;
    if (pending_prepared_.empty()) return false;
    auto next = std::find_if(pending_prepared_.begin(), pending_prepared_.end(),
                             [&](const Waiting& w) { return preparations_.AreHeld(w.needs); });
    if (next == pending_prepared_.end()) next = pending_prepared_.begin();
    if (!preparations_.Use(next->needs)) return false;
    preparing_.push_back(std::make_shared<Job>(std::move(*next), layout_.bytes));
    pending_prepared_.erase(next);
    work_.notify_all();
    return true;
  }

  // Takes part in the preparation that PickPreparation found.
  void Prepare(std::unique_lock<std::mutex>& lock) {
    const JobPtr job = preparing_.front();
    lock.unlock();
    {
      const Timer timer(&counters_.generate_ns);
      job->filler.Prepare();
    }
    lock.lock();
    if (preparing_.empty() || preparing_.front() != job) return;  // Another thread was faster.
    preparing_.pop_front();
    active_.push_back(job);
    work_.notify_all();
  }

  static bool IsDone(const Lane& lane) {
    return (lane.hash ? lane.hashed : lane.made) == lane.bytes;
  }

  // Makes and hashes a tile of each busy lane's block, hot; false once one of
  // the blocks is done.
  bool Advance(Lane& a, Lane& b) {
    for (Lane* lane : {&a, &b}) {
      if (lane->busy) Make(lane);
    }
    const bool hash_a = a.busy && a.hash, hash_b = b.busy && b.hash;
    if (hash_a || hash_b) {
      const Timer timer(&counters_.hash_ns);
      const int64_t a_bytes = hash_a ? std::min(kTileBytes, a.made - a.hashed) : 0;
      const int64_t b_bytes = hash_b ? std::min(kTileBytes, b.made - b.hashed) : 0;
      const uint8_t* const a_data = hash_a ? a.block.data + a.hashed : nullptr;
      const uint8_t* const b_data = hash_b ? b.block.data + b.hashed : nullptr;
      if (hash_a && hash_b) {
        Sha256::UpdateBoth(a.job->hash, a_data, static_cast<size_t>(a_bytes), b.job->hash, b_data,
                           static_cast<size_t>(b_bytes));
      } else if (hash_a) {
        a.job->hash.Update(a_data, static_cast<size_t>(a_bytes));
      } else {
        b.job->hash.Update(b_data, static_cast<size_t>(b_bytes));
      }
      a.hashed += a_bytes;
      b.hashed += b_bytes;
      counters_.hashed_bytes += a_bytes + b_bytes;
    }
    return !(a.busy && IsDone(a)) && !(b.busy && IsDone(b));
  }

  // The next tile of the lane's block, if all of those made are hashed; all of
  // the block at once if it is not to be hashed now.
  void Make(Lane* lane) {
    const int64_t left = lane->bytes - lane->made;
    if (left == 0) return;
    const Job& job = *lane->job;
    const int64_t size = job.filler.element_bytes();
    const bool in_tiles = lane->hash && !job.task.source && !job.filler.wants_long_stretches();
    const int64_t count = (in_tiles ? std::min(kTileBytes, left) : left) / size;
    const int64_t first = lane->block.index * job.block_elements + lane->made / size;
    uint8_t* out = lane->block.data + lane->made;
    const Timer timer(&counters_.generate_ns);
    job.task.source ? job.task.source(first, count, out) : job.filler.Fill(first, count, out);
    lane->made += count * size;
    counters_.generated_bytes += count * size;
  }

  // Holding the lock: a block that is done waits for its hash, or goes on to the
  // writers, or is done with. The last block of a box settles its digest first.
  void Settle(Lane* lane, std::unique_lock<std::mutex>& lock) {
    const Block block = std::exchange(lane->block, {});
    Job& job = *block.job;
    lane->busy = false;
    if (!lane->hash) {
      job.ahead.emplace(block.index, block.data);
      return;
    }
    job.hashing = false;
    if (++job.next_hash == job.blocks) *job.task.digest = job.hash.Finish();
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

  int64_t BytesOf(const Block& block) const {
    const Job& job = *block.job;
    const int64_t first = block.index * job.block_elements;
    return std::min(job.block_elements, job.filler.elements() - first) * job.filler.element_bytes();
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
    if (direct < bytes && !WriteAll(out.fd, block.data + direct,
                                    static_cast<size_t>(bytes - direct), offset + direct)) {
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
      if (last && !block.job->needs.empty()) preparations_.Release(block.job->needs);
    }
    last ? work_.notify_all() : work_.notify_one();
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
  std::deque<Waiting> pending_prepared_;  // Those that need preparations.
  std::list<JobPtr> preparing_;           // At most one.
  Preparations preparations_;
  std::list<JobPtr> active_;  // With blocks left to generate.
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
