// Makes boxes of a tensor from boxes that are cut elsewhere, in one pass over both.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/sha256.h"
#include "checkpoint/watched_box.h"
#include "formats/pieces.h"
#include "generate/workers.h"

namespace shardinit {

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
    // and this one reads only what is wanted.
    std::shared_ptr<Digest> digest;
  };

  // The sources, which share no elements, must have all elements of the boxes to make.
  Sweep(const std::vector<Source>& sources, std::vector<BoxTask> tasks);

  int64_t bytes() const override;
  int64_t Make(uint8_t* memory, int64_t bytes, std::vector<BoxWrite>* writes) override;
  bool IsDone() const override;

 private:
  // A box with a digest. The current step covers its elements from `done` to before `next`.
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
  // Counts the elements of a box before the place with these indices.
  static int64_t ElementsBefore(const std::vector<int64_t>& indices, const Box& box);
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
  std::vector<Read> reads_;       // sources whose digest is taken
  std::vector<Source> compared_;  // the other sources
  std::vector<Made> makes_;
  Box hull_;                // the hull of all boxes that are read for their digests or made
  int64_t place_ = 0;       // All elements before this place are done.
  int64_t next_place_ = 0;  // the end of the current step
};

}  // namespace shardinit
