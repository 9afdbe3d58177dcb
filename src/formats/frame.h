// Reads compressed bytes of files, from any offset and with little memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace shardinit {

// A range of bytes in a file or in memory.
struct Extent {
  std::string file;  // for messages, if the bytes are in memory
  int64_t offset = 0, bytes = 0;
  std::shared_ptr<const std::string> memory = nullptr;
};

// Bytes that an extent stores as one zstd frame or, in memory, uncompressed.
struct Frame {
  Extent stored;
  bool is_zstd = false;
  int64_t bytes = 0;  // the decoded size
};

// Reads decoded bytes, from `offset` on. A frame is decoded from its beginning, so ascending reads
// decode it once. Throws Error: kRefused if the frame is damaged or has another decoded size,
// kWorld if the file cannot be read. Thread-safe.
void ReadFrame(const std::shared_ptr<const Frame>& frame, int64_t offset, int64_t bytes, void* out);
// Closes the files that ReadFrame() keeps open for the next read.
void CloseFrames();

// Returns all bytes of an extent, decoded if `is_zstd`. Throws Error as ReadFrame() does, and
// kRefused if there are more than `limit` bytes.
std::string ReadExtent(const Extent& extent, bool is_zstd, int64_t limit);

}  // namespace shardinit
