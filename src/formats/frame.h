// Reads bytes that a file holds compressed, from any place and with little memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace shardinit {

// A part of a file, or bytes that are in memory already.
struct Extent {
  std::string file;  // for messages, if the bytes are in memory
  int64_t offset = 0, bytes = 0;
  std::shared_ptr<const std::string> memory = nullptr;
};

// Bytes that an extent holds as one frame of zstd or, in memory, as they are.
struct Frame {
  Extent stored;
  bool is_zstd = false;
  int64_t bytes = 0;  // the size of what the frame holds
};

// Reads bytes of what the frame holds, from `offset` on. A frame is decoded from its beginning, so
// reads in ascending order decode it once. Throws Error: kRefused if the frame is damaged or holds
// another number of bytes, and kWorld if the file cannot be read. Safe to use from several threads.
void ReadFrame(const std::shared_ptr<const Frame>& frame, int64_t offset, int64_t bytes, void* out);

// Returns all that an extent holds, decoded if it `is_zstd`. Throws Error as ReadFrame() does, and
// kRefused if that is more than `limit` bytes.
std::string ReadExtent(const Extent& extent, bool is_zstd, int64_t limit);

}  // namespace shardinit
