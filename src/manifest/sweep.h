// Boxes of a tensor out of boxes that are cut elsewhere, in one pass over both.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/sha256.h"
#include "formats/pieces.h"
#include "generate/workers.h"
#include "manifest/watched_box.h"

namespace shardinit {

// The elements of any box follow one another as they do in the whole tensor. So a pass over the
// tensor's indices meets those of every box in the order in which its file and its digest have
// them: each byte that is read is hashed for the digest of the box it is read from, moved to where
// it belongs, and hashed there, all from the same memory. That holds some of each box that the pass
// is in, however large they are.
class Sweep final : public BoxPass {
 public:
  struct Source {
    const FilePiece* piece;
    // Who else reads some of it. Null: nobody does, and every element is wanted here.
    std::shared_ptr<WatchedBox> watched;
    // Receives the digest, for which all of the box is read. Null: somebody else takes it, and
    // only what is wanted is read.
    std::shared_ptr<Digest> digest;
  };

  // The sources, which share no elements, have all elements of the boxes to make.
  Sweep(const std::vector<Source>& sources, std::vector<BoxTask> tasks);

  int64_t bytes() const override;
  int64_t Make(uint8_t* memory, int64_t bytes, std::vector<BoxWrite>* writes) override;
  bool IsDone() const override;

 private:
  // A box with a digest. What the pass is at are its elements from `done` to before `next`.
  struct Stream {
    int64_t elements() const { return next - done; }

    Box box;
    int64_t end;  // The place behind its last element.
    int64_t done = 0, next = 0;
    uint8_t* data = nullptr;  // Those elements.
    Sha256 hash = {};
  };
  struct Read : Stream {
    Source source;
  };
  struct Made : Stream {
    std::vector<BoxTask> tasks;  // Of equal boxes.
    uint32_t crc = 0;
  };

  // Places are numbered in the row-major order of `hull_`.
  int64_t PlaceBehind(const Box& box) const;
  // The elements of a box before a place, of which these are the indices.
  static int64_t ElementsBefore(const std::vector<int64_t>& indices, const Box& box);
  std::vector<int64_t> IndicesOf(int64_t place) const;

  template <typename Visit>
  void ForEachStream(const Visit& visit);
  // Goes on as far as memory for so many bytes reaches.
  void Advance(int64_t bytes, bool reads);
  // Whether this comes from one box, all of it, for one box.
  bool IsOneInOne() const;
  void ReadSources();
  void FillMade(Made& made);
  void Settle();

  const int element_;
  std::vector<Read> reads_;       // Those whose digest is taken.
  std::vector<Source> compared_;  // The others.
  std::vector<Made> makes_;
  Box hull_;                // Of all that is read for its digest or made.
  int64_t place_ = 0;       // What is before it is done.
  int64_t next_place_ = 0;  // To where the pass is at.
};

}  // namespace shardinit
