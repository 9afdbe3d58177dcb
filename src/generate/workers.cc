// Implements Workers. The file is long because all threads share one state under one lock.
#include "generate/workers.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/output_file.h"
#include "base/parallel.h"
#include "generate/block_work.h"
#include "generate/fill.h"

namespace shardinit {

namespace {

// Boxes that were submitted together.
struct Group {
  std::function<void()> done;
  std::atomic<int64_t> unfinished;  // boxes
};

struct Waiting {
  BoxTask task;
  std::shared_ptr<Group> group;
  std::vector<Preparation> needs;
  int64_t number;  // in order of submission
};

// A box at work.
struct Job : BoxWork {
  Job(Waiting waiting, int64_t block_bytes)
      : BoxWork(std::move(waiting.task), block_bytes),
        group(std::move(waiting.group)),
        needs(std::move(waiting.needs)),
        unwritten(blocks) {}

  // Returns whether the next block to hash waits for a thread.
  bool IsReady() const { return !hashing && !ahead.empty() && ahead.begin()->first == next_hash; }
  // Counts the next block as hashed. The last block settles the box's digest.
  void EndHash() {
    hashing = false;
    if (++next_hash < blocks) return;
    *task.digest = hash.Finish();
    if (task.crc != nullptr) *task.crc = crc;
  }
  std::vector<BoxWrite> WritesOf(int64_t block, const uint8_t* data) const {
    const BoxOutput& out = task.output;
    if (out.file == nullptr) return {};
    return {{out.file, data, BytesOf(block), out.offset + OffsetOf(block)}};
  }

  const std::shared_ptr<Group> group;
  const std::vector<Preparation> needs;
  // The pool's mutex guards these, except the atomic `unwritten`.
  int64_t next_block = 0;             // the next block to generate
  int64_t next_hash = 0;              // the next block to hash
  bool hashing = false;               // Some thread owns `hash`.
  std::map<int64_t, uint8_t*> ahead;  // Generated blocks that wait to be hashed.
  std::atomic<int64_t> unwritten;     // Blocks, including those not yet generated.
};
using JobPtr = std::shared_ptr<Job>;

struct Block {
  JobPtr job;
  int64_t index;
  uint8_t* data;
  std::vector<BoxWrite> writes;
};

int64_t Bytes(const BoxTask& task) {
  if (task.pass) return task.pass->bytes();
  return ElementCount(task.box.shape) * InfoOf(task.tensor->dtype()).bytes;
}

// Returns the order in which tasks are taken: the largest first, or as given. Returns pointers,
// because tasks are large and there can be a million.
std::vector<BoxTask*> InOrder(std::vector<BoxTask>& tasks, bool as_they_stand) {
  std::vector<std::pair<int64_t, BoxTask*>> order;
  order.reserve(tasks.size());
  for (BoxTask& task : tasks) order.emplace_back(as_they_stand ? 0 : -Bytes(task), &task);
  std::sort(order.begin(), order.end());
  std::vector<BoxTask*> sorted(order.size());
  std::ranges::transform(order, sorted.begin(), &std::pair<int64_t, BoxTask*>::second);
  return sorted;
}

void WriteBlock(const Block& block, WorkCounters& counters) {
  const Timer timer(&counters.write_ns);
  for (const BoxWrite& write : block.writes) {
    counters.direct_bytes += write.file->Write(write.data, write.bytes, write.offset);
    counters.written_bytes += write.bytes;
  }
}

// The work of a generating thread on one of its two boxes.
struct Lane {
  bool busy() const { return work.box != nullptr; }

  JobPtr job;  // The job that the lane keeps while the job has work.
  BlockWork work;
};

}  // namespace

class Workers::Pool {
 public:
  Pool(const WorkerOptions& options, WorkCounters* counters)
      : counters_(*counters),
        in_order_(options.in_order),
        has_writers_(options.writers > 0),
        free_(BlocksFor(options)),
        preparations_(options.memory, [](const Tensor& drawn) {
          return std::shared_ptr<const Filler>(FillerOf(drawn));
        }) {
    Start(options.jobs > 0 ? options.jobs : AvailableCores(), [this] { Generate(); });
    Start(options.writers, [this] { Write(); });
  }

  ~Pool() { Stop(); }

  void Submit(std::vector<BoxTask> tasks, std::function<void()> done) {
    const std::vector<BoxTask*> order = InOrder(tasks, in_order_);
    auto group = std::make_shared<Group>();
    group->done = std::move(done);
    group->unfinished = static_cast<int64_t>(tasks.size());
    const bool empty = tasks.empty();
    {
      const std::lock_guard lock(mutex_);
      for (BoxTask* task : order) {
        std::vector<Preparation> needs;
        if (!task->source && !task->pass) needs = PreparationsOf(*task->tensor, task->box);
        auto& queue = needs.empty() ? pending_ : pending_prepared_;
        queue.push_back({std::move(*task), group, std::move(needs), submitted_++});
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
  template <typename Body>
  void Start(int count, Body body) {
    const int started = threads_.Start(count, [this, body] {
      try {
        body();
      } catch (...) {
        Fail(std::current_exception());
      }
    });
    if (started > 0 || count == 0) return;
    Stop();
    throw Error(ExitCode::kWorld, "cannot start a thread", "raise `ulimit -u`");
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
      if (!failure_) failure_ = std::move(failure);
    }
    Stop();
  }

  // Runs a generating thread. It works on two boxes at once, because hashing two takes as long as
  // hashing one.
  void Generate() {
    Lane lanes[2];
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return stopped_ || FillLanes(lanes) || PickPreparation(); });
      if (stopped_) return;
      if (!lanes[0].busy() && !lanes[1].busy()) {
        for (Lane& lane : lanes) {
          if (lane.job && !lane.job->task.pass) lane.job = nullptr;
        }
        Prepare(lock);
        continue;
      }
      lock.unlock();
      WorkOn(lanes[0].work, lanes[1].work, counters_);
      lock.lock();
      for (Lane& lane : lanes) {
        if (lane.busy() && lane.work.IsDone()) Settle(&lane, lock);
      }
    }
  }

  // Needs the lock. Gives idle lanes work. Returns whether any lane has work.
  bool FillLanes(Lane (&lanes)[2]) {
    for (int i = 0; i < 2; ++i) {
      Lane &lane = lanes[i], &other = lanes[1 - i];
      if (lane.busy()) continue;
      if (lane.job && TakeWork(&lane)) continue;
      // The lane must not keep the job's preparations after the job's end.
      if (lane.job && lane.job->next_hash == lane.job->blocks) lane.job = nullptr;
      if (!other.busy() && other.job && (std::swap(lane.job, other.job), TakeWork(&lane))) continue;
      if (free_.empty()) continue;
      if (!pending_.empty() && !(in_order_ && IsPreparedFirst())) {
        lane.job = std::make_shared<Job>(std::move(pending_.front()), free_.bytes());
        pending_.pop_front();
        if (!lane.job->task.pass) active_.push_back(lane.job);
        TakeWork(&lane);
      } else if (!other.busy() && !active_.empty()) {
        // The lane generates ahead for the box with the fewest blocks that wait to be hashed.
        lane.job = *std::min_element(
            active_.begin(), active_.end(),
            [](const JobPtr& a, const JobPtr& b) { return a->ahead.size() < b->ahead.size(); });
        TakeWork(&lane);
      }
    }
    return lanes[0].busy() || lanes[1].busy();
  }

  // Needs the lock. Returns whether the next task in order needs preparations.
  bool IsPreparedFirst() const {
    return !pending_prepared_.empty() &&
           (pending_.empty() || pending_prepared_.front().number < pending_.front().number);
  }

  // Needs the lock. Takes the next work of the lane's job: hashing a block that was generated
  // ahead, or generating one.
  bool TakeWork(Lane* lane) {
    Job& job = *lane->job;
    if (job.task.pass) {
      if (job.next_hash == job.blocks || free_.empty()) return false;
      ++job.unwritten;
      lane->work = {.box = &job, .data = free_.Take(), .hash = true, .bytes = free_.bytes()};
      return true;
    }
    BlockWork work{.box = &job};
    const bool ready = job.IsReady();
    if (ready) {
      work.index = job.next_hash;
      work.data = job.ahead.begin()->second;
      job.ahead.erase(job.ahead.begin());
    } else if (job.next_block < job.blocks && !free_.empty()) {
      work.index = job.next_block++;
      work.data = free_.Take();
      if (job.next_block == job.blocks) active_.remove(lane->job);
    } else {
      return false;
    }
    work.hash = !job.hashing && job.next_hash == work.index;
    if (work.hash) job.hashing = true;
    work.bytes = job.BytesOf(work.index);
    work.made = ready ? work.bytes : 0;
    lane->work = work;
    return true;
  }

  // Needs the lock. Returns whether there is a job whose filler needs preparation. One job at a
  // time is prepared, by all otherwise idle threads. Jobs that need only held preparations go
  // first.
  bool PickPreparation() {
    if (!preparing_.empty()) return true;
    if (pending_prepared_.empty() || (in_order_ && !IsPreparedFirst())) return false;
    auto next =
        in_order_ ? pending_prepared_.begin()
                  : std::find_if(pending_prepared_.begin(), pending_prepared_.end(),
                                 [&](const Waiting& w) { return preparations_.AreHeld(w.needs); });
    if (next == pending_prepared_.end()) next = pending_prepared_.begin();
    if (!preparations_.Use(next->needs)) return false;
    preparing_.push_back(std::make_shared<Job>(std::move(*next), free_.bytes()));
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

  // Needs the lock. A completed block waits for its hash, goes on to the writers, or is finished.
  void Settle(Lane* lane, std::unique_lock<std::mutex>& lock) {
    BlockWork work = std::exchange(lane->work, {});
    Block block{lane->job, work.index, work.data, std::move(work.writes)};
    Job& job = *block.job;
    if (job.task.pass) {
      if (job.task.pass->IsDone()) {
        ++job.next_hash;
        --job.unwritten;  // The pass has one count in addition to its blocks.
      }
      return PassOn(std::move(block), lock);
    }
    if (!work.hash) {
      job.ahead.emplace(block.index, block.data);
      return;
    }
    job.EndHash();
    block.writes = job.WritesOf(block.index, block.data);
    PassOn(std::move(block), lock);
  }

  // Needs the lock. Passes a hashed block on.
  void PassOn(Block block, std::unique_lock<std::mutex>& lock) {
    if (!block.writes.empty()) {
      Check(has_writers_, "a file to write to, but no writers");
      unwritten_.push_back(std::move(block));
      writes_.notify_one();
      return;
    }
    lock.unlock();
    FinishBlock(block);
    lock.lock();
  }

  // Runs a writing thread.
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
      WriteBlock(block, counters_);
      FinishBlock(block);
    }
  }

  void FinishBlock(const Block& block) {
    const std::shared_ptr<Group> group = block.job->group;
    const bool last = --block.job->unwritten == 0;
    bool had_none;
    {
      const std::lock_guard lock(mutex_);
      had_none = free_.empty();
      free_.GiveBack(block.data);
      if (last && !block.job->needs.empty()) preparations_.Release(block.job->needs);
    }
    // Wakes all threads, because not every thread can use the block: only a pass's own thread
    // continues the pass.
    if (last || had_none) work_.notify_all();
    if (last && --group->unfinished == 0) FinishGroup(group);
  }

  void FinishGroup(const std::shared_ptr<Group>& group) {
    if (group->done) group->done();
    group->done = nullptr;  // Releases the resources that it holds, such as open files.
    {
      const std::lock_guard lock(mutex_);
      ++finished_;
    }
    changed_.notify_all();
  }

  WorkCounters& counters_;
  const bool in_order_, has_writers_;

  mutable std::mutex mutex_;
  std::condition_variable work_;     // a free block or a new task
  std::condition_variable writes_;   // a block to write
  std::condition_variable changed_;  // a finished group or a failure
  Blocks free_;
  std::deque<Waiting> pending_;
  std::deque<Waiting> pending_prepared_;  // tasks that need preparations
  std::list<JobPtr> preparing_;           // at most one
  Preparations preparations_;
  std::list<JobPtr> active_;  // jobs with blocks left to generate
  std::deque<Block> unwritten_;
  int64_t submitted_ = 0;  // tasks
  int64_t finished_ = 0;   // groups
  bool stopped_ = false;
  std::exception_ptr failure_;
  // Threads are declared last, so that they end before anything they use.
  Threads threads_;
};

Workers::Workers(const WorkerOptions& options, WorkCounters* counters)
    : pool_(std::make_unique<Pool>(options, counters)) {}
Workers::~Workers() = default;
void Workers::Submit(std::vector<BoxTask> tasks, std::function<void()> done) {
  pool_->Submit(std::move(tasks), std::move(done));
}
bool Workers::Wait(int64_t groups, int milliseconds) { return pool_->Wait(groups, milliseconds); }
void Workers::WaitFor(int64_t groups, const std::function<void()>& every_tick) {
  while (!Wait(groups, 100)) {
    ThrowIfInterrupted();
    if (every_tick) every_tick();
  }
}
int64_t Workers::finished_groups() const { return pool_->finished(); }

}  // namespace shardinit
