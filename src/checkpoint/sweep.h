// Makes boxes of a tensor from boxes with other borders, in one pass over both, and watches
// boxes in ranks' files that are read more than once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fingerprint.h"
#include "base/sha256.h"
#include "formats/pieces.h"
#include "generate/workers.h"

namespace shardinit {

// All who read some part of the box get the same bytes, or an error. So the digest of the box,
// which one of them takes, is that of what the others read. Parts are compared by their
// fingerprints, which are small.
class WatchedBox {
 public:
  // The box is compared, and read, in cells of this many bytes: a power of two, 16 to
  // kLargestPrint.
  WatchedBox(FilePiece piece, int64_t bytes, int64_t cell_bytes);

  const FilePiece& piece() const { return piece_; }
  // Reads bytes, from several threads. `file` is the caller's; if it is none, it is opened.
  // Throws Error (kWorld) if the file cannot be read or has other bytes than at another time.
  void Read(InputFile* file, int64_t offset, int64_t bytes, void* out);

 private:
  void Compare(int64_t offset, int64_t bytes, const uint8_t* data);

  const FilePiece piece_;
  const int64_t bytes_, cell_bytes_;
  std::mutex mutex_;
  std::vector<Fingerprint> cells_;  // fingerprints of the first reads
  std::vector<bool> read_;          // the cells that were read
};

// The elements of any box follow one another as they do in the whole tensor. So a pass over the
// tensor's indices meets those of every box in the order in which its file and its digest have
// them. Each byte that is read is hashed for the digest of its box, moved to where it belongs, and
// hashed there, all in the same memory. That memory holds some of each box that the pass is in,
// however large the boxes are.
class Sweep final : public BoxPass {
 public:
  struct Source {
    const FilePiece* piece;
    // The other readers of the piece. Null: there are none, and every element is wanted here.
    std::shared_ptr<WatchedBox> watched;
    // Receives the digest, for which all of the piece is read. Null: another pass takes the digest,
    // or nobody does, and this one reads only what is wanted.
    std::shared_ptr<Digest> digest;
  };

  // The sources, which share no elements, must have all elements of the boxes to make.
  Sweep(const std::vector<Source>& sources, std::vector<BoxTask> tasks);

  int64_t bytes() const override;
  int64_t Make(uint8_t* memory, int64_t bytes, std::vector<BoxWrite>* writes) override;
  bool IsDone() const override;

 private:
  // A box that is gone through in order. The current step covers its elements from `done` to before
  // `next`.
  struct Stream {
    int64_t elements() const { return next - done; }

    Box box;
    int64_t end;  // The place behind its last element.
    int64_t done = 0, next = 0;
    uint8_t* data = nullptr;  // the elements of the current step
    Sha256 hash = {};
  };
  struct Read : Stream {
    Source source;
  };
  struct Made : Stream {
    std::vector<BoxTask> tasks;  // tasks of equal boxes
    uint32_t crc = 0;
  };

  // Places number the elements of `hull_` in row-major order. This is the place behind a box's last
  // element.
  int64_t PlaceBehind(const Box& box) const;
  std::vector<int64_t> IndicesOf(int64_t place) const;

  template <typename Visit>
  void ForEachStream(const Visit& visit);
  // Begins the next step, which goes as far as memory for so many bytes reaches.
  void Advance(int64_t bytes, bool reads);
  // Returns whether the current step takes all its elements from one box and for one box.
  bool IsOneInOne() const;
  void ReadSources();
  void FillMade(Made& made);
  void Settle();

  const int element_;
  std::vector<Read> reads_;       // sources that are read in order
  std::vector<Source> compared_;  // those that are watched, and hashed by others
  std::vector<Made> makes_;
  Box hull_;                // the hull of all boxes that are read in order or made
  int64_t place_ = 0;       // All elements before this place are done.
  int64_t next_place_ = 0;  // the end of the current step
};

}  // namespace shardinit
