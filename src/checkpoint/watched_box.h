// Watches a box in a rank's file that is read more than once.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "formats/pieces.h"

namespace shardinit {

// All who read some part of the box get the same bytes, or an error. So the digest of the box,
// which one of them takes, is that of what the others read. Parts are compared by a random hash
// (NH, of UMAC), which misses a difference with a probability of 2^-64; what is kept of them is
// small.
class WatchedBox {
 public:
  // The box is compared, and read, in cells of this many bytes: a power of two, 16 to kLargestCell.
  WatchedBox(FilePiece piece, int64_t bytes, int64_t cell_bytes);

  static constexpr int64_t kLargestCell = 64 << 10;

  const FilePiece& piece() const { return piece_; }
  // Reads bytes, from several threads. `fd` is the caller's; if it is empty, the file is opened.
  // Throws Error (kWorld) if the file cannot be read or has other bytes than at another time.
  void Read(Fd* fd, int64_t offset, int64_t bytes, void* out);

 private:
  using Fingerprint = unsigned __int128;
  static Fingerprint FingerprintOf(const uint8_t* data, int64_t bytes);
  void Compare(int64_t offset, int64_t bytes, const uint8_t* data);

  const FilePiece piece_;
  const int64_t bytes_, cell_bytes_;
  std::mutex mutex_;
  std::vector<Fingerprint> cells_;  // fingerprints of the first reads
  std::vector<bool> read_;          // the cells that were read
};

}  // namespace shardinit
