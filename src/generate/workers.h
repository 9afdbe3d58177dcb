// Generates, hashes and writes boxes on all cores, as fast as the slowest of the three allows.
//
// A box is divided into blocks. Any thread generates blocks, in any order. The thread that owns the
// box's hash hashes them in order (SHA-256 is sequential). Separate threads write them in any
// order, so that disk and CPU overlap.
//
// While boxes remain, a thread keeps to two. It hashes each piece while the piece is in its cache,
// and hashes both boxes in the time of one. When no box remains, threads generate ahead for the
// boxes at work. So even a single large box runs at the speed of one core's SHA-256, not of one
// core doing everything. Large boxes go first, which keeps the end of a job short.
//
// A pass over several boxes is one thread's work: it proceeds in order, block by block.
//
// Memory is blocks x block size, whatever the boxes' sizes: a thread that finds no free block waits
// for the writers. The result does not depend on any of this.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/sha256.h"
#include "graph/graph.h"

namespace shardinit {

struct WorkerOptions {
  int jobs = 0;                // Threads that generate and hash; 0: the number of cores.
  int writers = 0;             // Threads that write; 0: none, for digests.
  int64_t memory = 160 << 20;  // the most bytes of all blocks
  // Blocks are longer than is best for writing, as far as the memory allows.
  bool has_long_blocks = false;
  // Boxes are taken in the order of submission, for sinks that keep bytes in memory until the bytes
  // before them arrive.
  bool in_order = false;
};

// The number and size of blocks for `options`. gen's memory is about their product.
struct BlockLayout {
  int64_t count, bytes;
};
BlockLayout BlocksFor(const WorkerOptions& options);

// Holds the memory in which values are generated, in pieces of one size. Not thread-safe: the
// caller locks.
class Blocks {
 public:
  // Throws Error (kWorld) if there is not enough memory.
  explicit Blocks(const BlockLayout& layout);
  ~Blocks();
  Blocks(const Blocks&) = delete;

  int64_t bytes() const { return layout_.bytes; }  // bytes per block
  bool empty() const { return free_.empty(); }
  uint8_t* Take();
  void GiveBack(uint8_t* block) { free_.push_back(block); }

 private:
  const BlockLayout layout_;
  void* memory_ = nullptr;
  std::vector<uint8_t*> free_;
};

// The work done so far, and the time that all threads together spent on it.
struct WorkCounters {
  std::atomic<int64_t> generated_bytes{0}, hashed_bytes{0}, written_bytes{0}, direct_bytes{0};
  std::atomic<int64_t> generate_ns{0}, hash_ns{0}, write_ns{0}, sync_ns{0}, metadata_ns{0},
      finalize_ns{0};
};

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

class Sink;

// Where a box's bytes go.
struct BoxOutput {
  const Sink* file = nullptr;  // Null: only the digest is wanted.
  int64_t offset = 0;
};

// Writes elements first … first + count - 1 of a box to `out`, from several threads.
using BoxElements = std::function<void(int64_t first, int64_t count, void* out)>;

// A write that a box needs.
struct BoxWrite {
  const Sink* file;
  const uint8_t* data;
  int64_t bytes, offset;  // byte count and offset in the file
};

// Boxes that are generated together, in one pass over their sources.
class BoxPass {
 public:
  virtual ~BoxPass() = default;

  virtual int64_t bytes() const = 0;  // The bytes of all of these boxes.
  // Generates and hashes the next part of the boxes in `bytes` bytes of memory. Returns how many
  // bytes of the boxes that is. One thread at a time calls it.
  virtual int64_t Make(uint8_t* memory, int64_t bytes, std::vector<BoxWrite>* writes) = 0;
  virtual bool IsDone() const = 0;  // All bytes are generated, and all wanted digests set.
};

struct BoxTask {
  const Tensor* tensor;
  Box box;
  BoxOutput output;
  Digest* digest;                // Receives the SHA-256 of the box's bytes.
  BoxElements source = nullptr;  // Null: the bytes are generated.
  // Receives the CRC-32 of the bytes, if wanted, before the last of them go to the output.
  uint32_t* crc = nullptr;
  // If set, the pass generates its own boxes instead of this one, which is any one of them.
  std::shared_ptr<BoxPass> pass = nullptr;
};

// Concurrent writes; more would not be faster.
inline constexpr int kDefaultWriters = 4;

class Workers {
 public:
  Workers(const WorkerOptions& options, WorkCounters* counters);
  ~Workers();  // Stops without waiting for tasks that have not begun.

  // Queues boxes. `done` runs on some thread when all of them are hashed and written, and is then
  // destroyed.
  void Submit(std::vector<BoxTask> tasks, std::function<void()> done);

  // Waits until `done` has returned for this many groups, for at most `milliseconds`. Returns
  // whether it has. Rethrows the first exception of a task or a `done`.
  bool Wait(int64_t groups, int milliseconds);

  // Waits without a limit. Calls `every_tick`, if set, about ten times a second. Throws Interrupted
  // when a signal requests the end.
  void WaitFor(int64_t groups, const std::function<void()>& every_tick);

  int64_t finished_groups() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace shardinit
