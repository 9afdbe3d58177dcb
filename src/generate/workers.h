// Makes, hashes and writes boxes on all cores, as fast as the slowest of the three allows.
//
// A box is cut into blocks. Any thread generates blocks in any order. Whoever holds the box's hash
// hashes them in order (SHA-256 is sequential). Threads of their own write them in any order, so
// that disk and CPU overlap. A thread keeps to two boxes while there are others to take: it hashes
// each piece while that is in its cache, and both boxes' in the time of one. When no box is left to
// take, threads generate ahead for the boxes at work, so that even a single large box runs at the
// speed of one core's SHA-256, not at that of one core doing everything. Large boxes go first,
// which keeps the end of a job short.
//
// A pass over several boxes is one thread's work: it goes on in order, block by block.
//
// Memory is blocks x block size, whatever the boxes' sizes: a thread that finds no free block waits
// for the writers. The result depends on none of this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "generate/blocks.h"
#include "generate/counters.h"
#include "graph/graph.h"

namespace shardinit {

class OutputFile;

// The place where a box's bytes go.
struct BoxOutput {
  const OutputFile* file = nullptr;  // Null: nowhere, only the digest is wanted.
  int64_t offset = 0;
};

// Gives elements first … first + count - 1 of a box, from several threads.
using BoxElements = std::function<void(int64_t first, int64_t count, void* out)>;

// A write that a box needs.
struct BoxWrite {
  const OutputFile* file;
  const uint8_t* data;
  int64_t bytes, offset;  // byte count and offset in the file
};

// Boxes that are made together, in one pass over their sources.
class BoxPass {
 public:
  virtual ~BoxPass() = default;

  virtual int64_t bytes() const = 0;  // The bytes of all of these boxes.
  // Makes and hashes the next part of the boxes in so many bytes of memory. Returns how many of
  // their bytes that is. One thread at a time calls it.
  virtual int64_t Make(uint8_t* memory, int64_t bytes, std::vector<BoxWrite>* writes) = 0;
  virtual bool IsDone() const = 0;  // All bytes are made, and all wanted digests set.
};

struct BoxTask {
  const Tensor* tensor;
  Box box;
  BoxOutput output;
  Digest* digest;                // Receives the SHA-256 of the box's bytes.
  BoxElements source = nullptr;  // Null: the bytes are generated.
  uint32_t* crc = nullptr;       // Receives the CRC-32 of the bytes, if it is wanted.
  // If set, the pass makes its own boxes instead of this one, which is any one of them.
  std::shared_ptr<BoxPass> pass = nullptr;
};

// Writes under way at once; more of them are no faster.
inline constexpr int kDefaultWriters = 4;

class Workers {
 public:
  Workers(const WorkerOptions& options, WorkCounters* counters);
  ~Workers();  // Stops without waiting for tasks that have not begun.

  // Queues boxes. `done` runs on some thread when all of them are hashed and written, and is then
  // destroyed.
  void Submit(std::vector<BoxTask> tasks, std::function<void()> done);

  // Waits until the `done` of this many groups has returned, for at most `milliseconds`. Returns
  // whether they have. Rethrows the first exception of a task or a `done`.
  bool Wait(int64_t groups, int milliseconds);

  // Waits as long as it takes. Calls `every_tick`, if there is one, about ten times a second.
  // Throws Interrupted when a signal asks for the end.
  void WaitFor(int64_t groups, const std::function<void()>& every_tick);

  int64_t finished_groups() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace shardinit
