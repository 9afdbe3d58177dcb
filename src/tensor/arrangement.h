// Assembles tensors from elements of other tensors. The operations move elements and never change
// them.
//
// An arrangement is a list of pieces. A piece maps row-major indices of the result to row-major
// indices of a source. Both indices are the same kind of sum:
//
//   to   = base + i0 * stride0 + i1 * stride1 + …      0 <= i < extent
//   from = from + i0 * from0   + i1 * from1   + …
//
// A whole tensor of n elements is one loop (n, 1, 1), whatever its shape. To move a dimension, the
// code must know which loops count in that dimension. So it first cuts a piece until its indices
// below the dimension's place value never carry into it (Align), as with the digits of a number.
// Reshaping moves nothing.
//
// The pieces of an arrangement have every element exactly once. The loops of a piece are nested: a
// stride is larger than the reach of all later loops together, so earlier iterations come before
// later ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/box.h"

namespace shardinit {

struct Piece {
  static constexpr int64_t kPadding = -1;

  struct Loop {
    int64_t extent, stride, from;

    bool operator==(const Loop&) const = default;
  };

  int64_t source = 0;  // the number of the tensor that has the elements
  double padding = 0;  // the value of all elements if `source` is kPadding
  int64_t base = 0, from = 0;
  std::vector<Loop> loops;  // All extents are larger than 1.

  int64_t elements() const;
  // Returns the index of the last element, counted from `base`.
  int64_t span() const;

  bool operator==(const Piece&) const = default;
};

struct Arrangement {
  Shape shape;
  std::vector<Piece> pieces;
};

// The number of pieces that may still be created. At 0 the operations below stop, and their results
// must not be used. Cutting at odd places creates many pieces.
using PieceBudget = int64_t;

// Each operation requires arguments that fit one another and their shapes. The element count of the
// result must fit 63 bits.
Arrangement WholeTensor(int64_t source, const Shape& shape);
// Returns a non-empty tensor whose elements are in a storage, by strides. `from` counts elements of
// the storage from the tensor's first element.
Piece StridedTensor(const Shape& shape, const Shape& strides);
Arrangement Stack(std::vector<Arrangement> of, size_t axis, PieceBudget* budget);
Arrangement Concat(std::vector<Arrangement> of, size_t axis, PieceBudget* budget);
// Cuts the axis of each arrangement into `groups` groups. The result has all first groups, then all
// second groups, and so on.
Arrangement Interleave(std::vector<Arrangement> of, size_t axis, int64_t groups,
                       PieceBudget* budget);
// Dimension d of the result is dimension axes[d] of `of`.
Arrangement Transpose(Arrangement of, const std::vector<int64_t>& axes, PieceBudget* budget);
Arrangement Reshape(Arrangement of, Shape shape);
// Extends the axis with constants at its end.
Arrangement Pad(Arrangement of, size_t axis, int64_t extent, double padding, PieceBudget* budget);
Arrangement Slice(Arrangement of, size_t axis, int64_t start, int64_t stop, PieceBudget* budget);

// Returns the part inside a box, as a tensor of the box's shape.
Arrangement BoxOf(Arrangement of, const Box& box, PieceBudget* budget);

// Splits `piece` into parts in which no index below `place` carries into it, and appends them.
void AlignPiece(const Piece& piece, int64_t place, std::vector<Piece>* out, PieceBudget* budget);

// Appends the parts of `piece` whose elements have an index from `first` to `last` - 1, in their
// order.
void ClipPiece(const Piece& piece, int64_t first, int64_t last, std::vector<Piece>* out);

}  // namespace shardinit
