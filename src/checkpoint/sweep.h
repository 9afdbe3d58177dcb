// Assembles boxes of a tensor from boxes with different borders in one pass, and compares boxes of
// rank files that are read more than once.
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

// A box that is read in parts. All readers get the same bytes or an error, so the digest that one
// reader takes covers the bytes of all. Parts are compared by their fingerprints, which are small.
class WatchedBox {
 public:
  // The box is compared, and read, in cells of `cell_bytes` bytes: a power of two, 16 to
  // kLargestPrint.
  WatchedBox(FilePiece piece, int64_t bytes, int64_t cell_bytes);

  const FilePiece& piece() const { return piece_; }
  // Reads bytes. Thread-safe. Opens `file`, which belongs to the caller, if it is not open. Throws
  // Error (kWorld) if the file cannot be read or its bytes differ from an earlier read.
  void Read(InputFile* file, int64_t offset, int64_t bytes, void* out);

 private:
  void Compare(int64_t offset, int64_t bytes, const uint8_t* data);

  const FilePiece piece_;
  const int64_t bytes_, cell_bytes_;
  std::mutex mutex_;
  std::vector<Fingerprint> cells_;  // fingerprints of the first reads
  std::vector<bool> read_;          // the cells that were read
};

// Makes boxes in one pass over a tensor's indices. The elements of any box have the same order as
// in the whole tensor, so the pass meets them in the order of the box's file and digest. Each byte
// that is read is hashed for its source, moved to its place, and hashed for the box that is made,
// all in the same memory. That memory holds a part of each box that the pass is in, however large
// the boxes are.
class Sweep final : public BoxPass {
 public:
  struct Source {
    const FilePiece* piece;
    // Shared with the other readers of the piece, if any.
    std::shared_ptr<WatchedBox> watched;
    // Receives the digest, for which the whole piece is read. Null: another pass takes the digest
    // or nobody does, and this pass reads only the elements that it needs.
    std::shared_ptr<Digest> digest;
  };

  // The sources must not share elements, and must have all elements of the boxes to make.
  Sweep(const std::vector<Source>& sources, std::vector<BoxTask> tasks);

  int64_t bytes() const override;
  int64_t Make(uint8_t* memory, int64_t bytes, std::vector<BoxWrite>* writes) override;
  bool IsDone() const override;

 private:
  // A box whose elements the pass visits in order. The current step covers the elements from `done`
  // to before `next`.
  struct Stream {
    int64_t elements() const { return next - done; }

    Box box;
    int64_t end;  // the place after its last element
    int64_t done = 0, next = 0;
    uint8_t* data = nullptr;  // the elements of the current step
    Sha256 hash = {};
  };
  struct Read : Stream {
    Source source;
  };
  struct OutputBox : Stream {
    std::vector<BoxTask> tasks;  // tasks of equal boxes
    uint32_t crc = 0;
  };

  // Returns the place after a box's last element. Places number the elements of `hull_` in
  // row-major order.
  int64_t EndPlace(const Box& box) const;
  std::vector<int64_t> IndicesOf(int64_t place) const;

  template <typename Visit>
  void ForEachStream(const Visit& visit);
  // Begins the next step, which is as long as `bytes` bytes of memory allow.
  void Advance(int64_t bytes, bool reads);
  // Returns whether the current step copies from one box to one box.
  bool IsOneInOne() const;
  void ReadSources();
  void FillOutput(OutputBox& made);
  void SetResults();

  const int element_;
  std::vector<Read> reads_;       // sources that are read in order
  std::vector<Source> compared_;  // sources that are watched, and hashed by others
  std::vector<OutputBox> makes_;
  Box hull_;                // the hull of all boxes that are read in order or made
  int64_t place_ = 0;       // all elements before this place are done
  int64_t next_place_ = 0;  // the end of the current step
};

}  // namespace shardinit
