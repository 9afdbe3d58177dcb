// Holds the memory in which values are made, in pieces of one size.
#pragma once

#include <cstdint>
#include <vector>

namespace shardinit {

struct WorkerOptions {
  int jobs = 0;                // Threads that generate and hash; 0: as many as there are cores.
  int writers = 0;             // Threads that write; 0: none, for digests.
  int64_t memory = 160 << 20;  // the most bytes of all blocks
};

// The number of blocks and their size that `options` give; gen's memory is about their product.
struct BlockLayout {
  int64_t count, bytes;
};
BlockLayout BlocksFor(const WorkerOptions& options);

// Not thread-safe: the caller locks.
class Blocks {
 public:
  // Throws Error (kWorld) if there is not that much memory.
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

}  // namespace shardinit
