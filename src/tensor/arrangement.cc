#include "tensor/arrangement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/checked_math.h"

namespace shardinit {
namespace {

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();

// Returns the number of elements of dimensions `axis` and later.
int64_t ElementsFrom(const Shape& shape, size_t axis) {
  int64_t count = 1;
  for (size_t d = axis; d < shape.size(); ++d) count *= shape[d];
  return count;
}

void Emit(Piece piece, std::vector<Piece>* out, PieceBudget* budget) {
  if (*budget <= 0) return;
  --*budget;
  out->push_back(std::move(piece));
}

// Returns `count` iterations of loop `l`, from iteration `begin` on.
Piece Iterations(const Piece& piece, size_t l, int64_t begin, int64_t count) {
  Piece part = piece;
  part.base += begin * part.loops[l].stride;
  part.from += begin * part.loops[l].from;
  part.loops[l].extent = count;
  if (count == 1) part.loops.erase(part.loops.begin() + static_cast<std::ptrdiff_t>(l));
  return part;
}

// The reach of the loops that count below `place`, and the index of the first such loop.
struct Low {
  int64_t base, span = 0;
  size_t loop;
};
Low LowOf(const Piece& piece, int64_t place) {
  Low low = {piece.base % place, 0, piece.loops.size()};
  for (size_t l = piece.loops.size(); l-- > 0;) {
    const Piece::Loop& loop = piece.loops[l];
    if (loop.stride % place == 0) continue;
    low.span += (loop.extent - 1) * loop.stride;
    low.loop = l;
  }
  return low;
}

// Appends the parts of an aligned piece that have an index below `place` in [first, last).
void Clip(const Piece& piece, int64_t place, int64_t first, int64_t last, std::vector<Piece>* out,
          PieceBudget* budget) {
  const Low low = LowOf(piece, place);
  if (low.base >= last || low.base + low.span < first) return;
  if (low.base >= first && low.base + low.span < last) return Emit(piece, out, budget);
  const auto [extent, stride, from] = piece.loops[low.loop];
  const int64_t rest = low.span - (extent - 1) * stride;
  // clang 14 captures a structured binding only like this.
  const auto clamp = [extent = extent](int64_t i) { return std::clamp<int64_t>(i, 0, extent); };
  // Loops are nested, so iterations are in order. Some may begin or end outside the range.
  const int64_t begin = clamp(CeilDiv(first - low.base - rest, stride));
  const int64_t end = clamp(CeilDiv(last - low.base, stride));
  const int64_t whole_begin = std::clamp(CeilDiv(first - low.base, stride), begin, end);
  const int64_t whole_end = std::max(whole_begin, clamp(CeilDiv(last - low.base - rest, stride)));
  for (int64_t i = begin; i < whole_begin; ++i) {
    Clip(Iterations(piece, low.loop, i, 1), place, first, last, out, budget);
  }
  if (whole_begin < whole_end) {
    Emit(Iterations(piece, low.loop, whole_begin, whole_end - whole_begin), out, budget);
  }
  for (int64_t i = whole_end; i < end; ++i) {
    Clip(Iterations(piece, low.loop, i, 1), place, first, last, out, budget);
  }
}

// Merges loops without changing the piece.
void Simplify(Piece* piece) {
  std::vector<Piece::Loop>& loops = piece->loops;
  for (size_t l = loops.size(); l-- > 1;) {
    Piece::Loop &outer = loops[l - 1], &inner = loops[l];
    if (outer.stride != inner.extent * inner.stride || outer.from != inner.extent * inner.from) {
      continue;
    }
    outer = {outer.extent * inner.extent, inner.stride, inner.from};
    loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(l));
  }
}

// Gives indices from `place` on the place value `to`, and moves those below `place` by `offset`.
void Rescale(int64_t place, int64_t to, int64_t offset, Piece* piece) {
  piece->base = piece->base / place * to + piece->base % place + offset;
  for (Piece::Loop& loop : piece->loops) {
    if (loop.stride % place == 0) loop.stride = loop.stride / place * to;
  }
  Simplify(piece);
}

// Adds the pieces of `of` to `out`, with the place value `to` instead of `place`.
void Spread(const Arrangement& of, int64_t place, int64_t to, int64_t offset, Arrangement* out,
            PieceBudget* budget) {
  for (const Piece& piece : of.pieces) {
    const size_t before = out->pieces.size();
    AlignPiece(piece, place, &out->pieces, budget);
    for (size_t p = before; p < out->pieces.size(); ++p) {
      Rescale(place, to, offset, &out->pieces[p]);
    }
  }
}

}  // namespace

int64_t Piece::elements() const {
  int64_t count = 1;
  for (const Loop& loop : loops) count *= loop.extent;
  return count;
}

int64_t Piece::span() const {
  int64_t span = 0;
  for (const Loop& loop : loops) span += (loop.extent - 1) * loop.stride;
  return span;
}

Arrangement WholeTensor(int64_t source, const Shape& shape) {
  Piece piece{.source = source, .loops = {}};
  if (const int64_t n = ElementCount(shape); n > 1) piece.loops.push_back({n, 1, 1});
  return {shape, {std::move(piece)}};
}

Piece StridedTensor(const Shape& shape, const Shape& strides) {
  Piece piece;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) piece.loops.push_back({shape[d], ElementsFrom(shape, d + 1), strides[d]});
  }
  Simplify(&piece);
  return piece;
}

Arrangement Stack(std::vector<Arrangement> of, size_t axis, PieceBudget* budget) {
  Arrangement out{of.front().shape, {}};
  const int64_t place = ElementsFrom(out.shape, axis), n = std::ssize(of);
  out.shape.insert(out.shape.begin() + static_cast<std::ptrdiff_t>(axis), n);
  for (int64_t i = 0; i < n; ++i) {
    Spread(of[static_cast<size_t>(i)], place, place * n, i * place, &out, budget);
  }
  return out;
}

Arrangement Concat(std::vector<Arrangement> of, size_t axis, PieceBudget* budget) {
  Arrangement out{of.front().shape, {}};
  out.shape[axis] = 0;
  for (const Arrangement& part : of) out.shape[axis] += part.shape[axis];
  const int64_t to = ElementsFrom(out.shape, axis);
  int64_t offset = 0;
  for (const Arrangement& part : of) {
    const int64_t place = ElementsFrom(part.shape, axis);
    Spread(part, place, to, offset, &out, budget);
    offset += place;
  }
  return out;
}

Arrangement Interleave(std::vector<Arrangement> of, size_t axis, int64_t groups,
                       PieceBudget* budget) {
  const auto at = static_cast<std::ptrdiff_t>(axis);
  for (Arrangement& part : of) {
    part.shape[axis] /= groups;
    part.shape.insert(part.shape.begin() + at, groups);
  }
  Arrangement out = Concat(std::move(of), axis + 1, budget);
  out.shape.erase(out.shape.begin() + at);
  out.shape[axis] *= groups;
  return out;
}

Arrangement Transpose(Arrangement of, const std::vector<int64_t>& axes, PieceBudget* budget) {
  const size_t rank = axes.size();
  Arrangement out;
  std::vector<int64_t> place(rank), to(rank);  // place values before and after
  for (size_t d = 0; d < rank; ++d) {
    place[d] = ElementsFrom(of.shape, d + 1);
    out.shape.push_back(of.shape[static_cast<size_t>(axes[d])]);
  }
  for (size_t d = 0; d < rank; ++d) {
    to[static_cast<size_t>(axes[d])] = ElementsFrom(out.shape, d + 1);
  }
  // Goes from the last dimension to the first, so that a later cut never undoes an earlier one.
  for (size_t d = rank; d-- > 0;) {
    if (place[d] == 1) continue;
    std::vector<Piece> aligned;
    for (const Piece& piece : of.pieces) AlignPiece(piece, place[d], &aligned, budget);
    of.pieces = std::move(aligned);
  }
  for (Piece& piece : of.pieces) {
    int64_t base = 0;
    for (size_t d = 0; d < rank; ++d) base += piece.base / place[d] % of.shape[d] * to[d];
    piece.base = base;
    for (Piece::Loop& loop : piece.loops) {
      size_t d = 0;
      while (place[d] > loop.stride || of.shape[d] == 1) ++d;
      loop.stride = loop.stride / place[d] * to[d];
    }
    std::sort(piece.loops.begin(), piece.loops.end(),
              [](const Piece::Loop& a, const Piece::Loop& b) { return a.stride > b.stride; });
    Simplify(&piece);
  }
  out.pieces = std::move(of.pieces);
  return out;
}

Arrangement Reshape(Arrangement of, Shape shape) {
  return {std::move(shape), std::move(of.pieces)};
}

Arrangement Pad(Arrangement of, size_t axis, int64_t extent, double padding, PieceBudget* budget) {
  if (extent == of.shape[axis]) return of;
  Shape shape = of.shape;
  shape[axis] = extent - shape[axis];
  Piece piece{.source = Piece::kPadding, .padding = padding, .loops = {}};
  if (const int64_t n = ElementCount(shape); n > 1) piece.loops.push_back({n, 1, 0});
  std::vector<Arrangement> both;
  both.push_back(std::move(of));
  both.push_back({std::move(shape), {std::move(piece)}});
  return Concat(std::move(both), axis, budget);
}

Arrangement Slice(Arrangement of, size_t axis, int64_t start, int64_t stop, PieceBudget* budget) {
  const int64_t behind = ElementsFrom(of.shape, axis + 1), place = of.shape[axis] * behind;
  Arrangement out{of.shape, {}};
  out.shape[axis] = stop - start;
  std::vector<Piece> aligned;
  for (const Piece& piece : of.pieces) AlignPiece(piece, place, &aligned, budget);
  for (const Piece& piece : aligned) {
    Clip(piece, place, start * behind, stop * behind, &out.pieces, budget);
  }
  for (Piece& piece : out.pieces) {
    Rescale(place, (stop - start) * behind, -start * behind, &piece);
  }
  return out;
}

Arrangement BoxOf(Arrangement of, const Box& box, PieceBudget* budget) {
  for (size_t d = 0; d < box.shape.size(); ++d) {
    if (box.shape[d] == of.shape[d]) continue;
    of = Slice(std::move(of), d, box.offset[d], box.offset[d] + box.shape[d], budget);
  }
  return of;
}

void AlignPiece(const Piece& piece, int64_t place, std::vector<Piece>* out, PieceBudget* budget) {
  const Low low = LowOf(piece, place);
  if (low.base + low.span < place) return Emit(piece, out, budget);
  const auto [extent, stride, from] = piece.loops[low.loop];
  const int64_t rest = low.span - (extent - 1) * stride;
  int64_t i = 0;
  while (i<extent&& * budget> 0) {
    const int64_t at = (piece.base + i * stride) % place;
    // All of these iterations are on one side of the next carry.
    const int64_t fit = at + rest < place ? (place - 1 - rest - at) / stride + 1 : 0;
    if (fit == 0) {
      AlignPiece(Iterations(piece, low.loop, i, 1), place, out, budget);
      ++i;
      continue;
    }
    // If these iterations are a whole round, more such rounds may follow.
    if (place % stride == 0 && fit == place / stride && (extent - i) / fit > 1) {
      const int64_t rounds = (extent - i) / fit;
      Piece part = Iterations(piece, low.loop, i, extent - i);
      part.loops[low.loop] = {fit, stride, from};
      part.loops.insert(part.loops.begin() + static_cast<std::ptrdiff_t>(low.loop),
                        {rounds, place, fit * from});
      if (fit == 1)
        part.loops.erase(part.loops.begin() + static_cast<std::ptrdiff_t>(low.loop) + 1);
      Emit(std::move(part), out, budget);
      i += rounds * fit;
      continue;
    }
    const int64_t count = std::min(fit, extent - i);
    Emit(Iterations(piece, low.loop, i, count), out, budget);
    i += count;
  }
}

void ClipPiece(const Piece& piece, int64_t first, int64_t last, std::vector<Piece>* out) {
  PieceBudget budget = kEverything;
  Clip(piece, kEverything, first, last, out, &budget);
}

}  // namespace shardinit
