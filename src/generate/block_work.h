// Makes and hashes a block that one thread holds, tile by tile, while the tiles are in its cache.
// It needs nothing that threads share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sha256.h"
#include "generate/fill.h"
#include "generate/workers.h"

namespace shardinit {

// A box that is made in blocks.
struct BoxWork {
  BoxWork(BoxTask box, int64_t block_bytes);

  int64_t BytesOf(int64_t block) const;
  int64_t OffsetOf(int64_t block) const { return block * block_elements * filler.element_bytes(); }

  const BoxTask task;
  const BoxFiller filler;
  const int64_t block_elements, blocks;  // A pass counts as one block.
  Sha256 hash;       // SHA-256 of the blocks in order, which one thread at a time updates.
  uint32_t crc = 0;  // Their CRC-32, if the task wants it.
};

struct BlockWork {
  bool IsDone() const { return (hash ? hashed : made) == bytes; }

  BoxWork* box = nullptr;  // Null: there is nothing to do.
  int64_t index = 0;
  uint8_t* data = nullptr;
  bool hash = false;  // The block is next in turn, and this thread has the box's hash.
  int64_t made = 0, hashed = 0, bytes = 0;  // Bytes of the block; `bytes` are all of it.
  std::vector<BoxWrite> writes = {};        // the writes of a pass
};

// Makes and hashes until one of the blocks is done. It takes two at once, since hashing two takes
// the time of one.
void WorkOn(BlockWork& a, BlockWork& b, WorkCounters& counters);

}  // namespace shardinit
