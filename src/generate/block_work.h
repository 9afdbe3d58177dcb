// Generates and hashes a block that one thread holds, tile by tile, while the tiles are in its
// cache. It needs no state that threads share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sha256.h"
#include "generate/fill.h"
#include "generate/workers.h"

namespace shardinit {

// A box that is generated in blocks.
struct BoxWork {
  BoxWork(BoxTask box, int64_t block_bytes);

  int64_t BytesOf(int64_t block) const;
  int64_t OffsetOf(int64_t block) const { return block * block_elements * filler.element_bytes(); }

  const BoxTask task;
  const BoxFiller filler;
  const int64_t block_elements, blocks;  // A pass counts as one block.
  Sha256 hash;       // SHA-256 of the blocks in order, which one thread at a time updates.
  uint32_t crc = 0;  // CRC-32 of the blocks, if the task wants it.
};

struct BlockWork {
  bool IsDone() const { return (hash ? hashed : made) == bytes; }

  BoxWork* box = nullptr;  // Null: there is nothing to do.
  int64_t index = 0;
  uint8_t* data = nullptr;
  bool hash = false;  // The block is the next one to hash, and this thread owns the box's hash.
  int64_t made = 0, hashed = 0, bytes = 0;  // Bytes of the block; `bytes` is its size.
  std::vector<BoxWrite> writes = {};        // the writes of a pass
};

// Generates and hashes until one of the blocks is done. It works on two blocks at once, because
// hashing two takes as long as hashing one.
void WorkOn(BlockWork& a, BlockWork& b, WorkCounters& counters);

}  // namespace shardinit
