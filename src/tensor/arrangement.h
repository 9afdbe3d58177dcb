// An arrangement puts a tensor together from elements of others. The operations move elements and
// change none.
//
// An arrangement is a list of pieces. A piece says where each of a set of elements comes from, by
// row-major index. Both indices are the same kind of sum:
//
//   to   = base + i0 * stride0 + i1 * stride1 + …      0 <= i < extent
//   from = from + i0 * from0   + i1 * from1   + …
//
// A whole tensor of n elements is one loop (n, 1, 1), whatever its shape. To move a dimension, one
// must know which loops count in it: so a piece is first cut until its indices below that
// dimension's place value never carry into it (Align), as with the digits of a number. Reshaping
// moves nothing.
//
// The pieces of an arrangement have every element once. The loops of a piece are nested: a stride
// is larger than what all later loops together reach, so earlier iterations come before later ones.
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

  int64_t source = 0;  // the number of the tensor that has the elements, or
  double padding = 0;  // with kPadding, all elements are this number
  int64_t base = 0, from = 0;
  std::vector<Loop> loops;  // All extents are larger than 1.

  int64_t elements() const;
  // The index of the last element, counted from `base`.
  int64_t span() const;

  bool operator==(const Piece&) const = default;
};

struct Arrangement {
  Shape shape;
  std::vector<Piece> pieces;
};

// How many more pieces may be made. At 0 the operations below stop, and their results must not be
// used. Cutting at odd places makes many pieces.
using PieceBudget = int64_t;

// Each operation needs arguments that fit one another and their shapes, and a result whose element
// count fits 63 bits.
Arrangement WholeTensor(int64_t source, const Shape& shape);
// Returns a non-empty tensor whose elements are in a storage, by strides: `from` counts the
// storage's elements from the tensor's first.
Piece StridedTensor(const Shape& shape, const Shape& strides);
Arrangement Stack(std::vector<Arrangement> of, size_t axis, PieceBudget* budget);
Arrangement Concat(std::vector<Arrangement> of, size_t axis, PieceBudget* budget);
// Cuts the axis of each into `groups` groups: the result has all first groups, then all second
// ones.
Arrangement Interleave(std::vector<Arrangement> of, size_t axis, int64_t groups,
                       PieceBudget* budget);
// Dimension d of the result is dimension axes[d].
Arrangement Transpose(Arrangement of, const std::vector<int64_t>& axes, PieceBudget* budget);
Arrangement Reshape(Arrangement of, Shape shape);
// Makes the axis longer, by constants at its end.
Arrangement Pad(Arrangement of, size_t axis, int64_t extent, double padding, PieceBudget* budget);
Arrangement Slice(Arrangement of, size_t axis, int64_t start, int64_t stop, PieceBudget* budget);

// Returns the part in a box, as a tensor of the box's shape.
Arrangement BoxOf(Arrangement of, const Box& box, PieceBudget* budget);

// Appends the parts of `piece` in none of which indices below `place` carry into it.
void AlignPiece(const Piece& piece, int64_t place, std::vector<Piece>* out, PieceBudget* budget);

// Appends the parts of `piece` whose elements have an index from `first` to `last` - 1, in their
// order.
void ClipPiece(const Piece& piece, int64_t first, int64_t last, std::vector<Piece>* out);

}  // namespace shardinit
