// Makes, hashes and writes boxes on all cores, as fast as the slowest of the
// three allows.
//
// A box is cut into blocks. Blocks are generated in any order by any thread,
// hashed in order (SHA-256 is sequential) by whoever holds the box's hash at
// that moment, and written in any order by threads of their own, so that disk
// and CPU overlap. A thread keeps to two boxes while there are others to take:
// it hashes each piece while that is in its cache, and both boxes' in the time of
// one. When no box is left to take, threads generate ahead for the ones at work,
// so that even a single large box runs at the speed of one core's SHA-256, not at
// that of one core doing everything. Large boxes go first, which keeps the end of
// a job short.
//
// Memory is blocks x block size, whatever the boxes' sizes: a thread that finds
// no free block waits for the writers. The result depends on none of this.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "graph/graph.h"

namespace shardinit {

// What has been done so far, and the time all threads together spent on it.
struct WorkCounters {
  std::atomic<int64_t> generated_bytes{0}, hashed_bytes{0}, written_bytes{0}, direct_bytes{0};
  std::atomic<int64_t> generate_ns{0}, hash_ns{0}, write_ns{0}, sync_ns{0}, metadata_ns{0},
      finalize_ns{0};
};

// Where a box's bytes go. `direct` is the same file opened with O_DIRECT, or
// -1 where the file system refuses that.
struct BoxOutput {
  int fd = -1;  // -1: nowhere, only the digest is wanted.
  int direct = -1;
  int64_t offset = 0;
  const std::string* path = nullptr;  // For messages.
};

struct BoxTask {
  const Tensor* tensor;
  Box box;
  BoxOutput output;
  Digest* digest;  // Receives the SHA-256 of the box's bytes.
  // Gives elements of the box, from several threads; null: they are generated.
  std::function<void(int64_t first, int64_t count, void* out)> source = nullptr;
};

// Writes that are under way at once; more of them are no faster.
inline constexpr int kDefaultWriters = 4;

struct WorkerOptions {
  int jobs = 0;                // Threads that generate and hash; 0: as many as there are cores.
  int writers = 0;             // Threads that write; 0: none, for digests.
  int64_t memory = 160 << 20;  // For blocks, at most.
};

// Blocks and their size that `options` give; gen's memory is about their product.
struct BlockLayout {
  int64_t count, bytes;
};
BlockLayout BlocksFor(const WorkerOptions& options);

class Workers {
 public:
  Workers(const WorkerOptions& options, WorkCounters* counters);
  ~Workers();  // Stops without waiting for tasks that have not begun.

  // Queues boxes; `done` runs on some thread when all of them are hashed and
  // written, and is then destroyed.
  void Submit(std::vector<BoxTask> tasks, std::function<void()> done);

  // Waits until the `done` of this many groups has returned, at most
  // `milliseconds`; true if so. Rethrows the first exception of a task or a `done`.
  bool Wait(int64_t groups, int milliseconds);

  int64_t finished_groups() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace shardinit
