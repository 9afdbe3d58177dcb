// Counts how much of a tensor is in its pieces.
//
// The indices that a piece takes from its source are digits, like its indices in the result
// (tensor/arrangement.h). The strides of its loops in the source are places, and each loop is a
// range of one digit. If the places of all pieces divide one another, and pieces are cut so that
// none carries, the pieces are boxes in one space of digits. To count the elements in several
// boxes, the space is halved until one box fills a part, or no box overlaps it.
#include "tensor/coverage.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace shardinit {
namespace {

constexpr PieceBudget kMostBoxes = 8 << 20;       // counted in cut pieces
constexpr int64_t kMostSteps = int64_t{1} << 31;  // one test of a box in a part of the space

// A piece's first and last index in its source.
struct Extent {
  int64_t first, last;
  const Piece* piece;
};

Extent ExtentOf(const Piece& piece) {
  int64_t last = piece.from;
  for (const Piece::Loop& loop : piece.loops) last += (loop.extent - 1) * loop.from;
  return {piece.from, last, &piece};
}

// Returns the elements that the piece takes, as a piece in the source's own order.
Piece SourcePiece(const Piece& piece, int64_t origin) {
  Piece taken{.base = piece.from - origin, .loops = {}};
  for (const Piece::Loop& loop : piece.loops) taken.loops.push_back({loop.extent, loop.from, 0});
  std::sort(taken.loops.begin(), taken.loops.end(),
            [](const Piece::Loop& a, const Piece::Loop& b) { return a.stride > b.stride; });
  return taken;
}

// Returns strides that divide one another, ascending from 1. Where strides conflict, keeps those
// with the most iterations.
std::vector<int64_t> PlacesOf(const std::vector<Piece>& pieces) {
  // By stride. These are doubles, because the sum has no bound if pieces overlap, and ordering
  // needs no more precision.
  std::map<int64_t, double> iterations;
  for (const Piece& piece : pieces) {
    for (const Piece::Loop& loop : piece.loops) {
      iterations[loop.stride] += static_cast<double>(loop.extent);
    }
  }
  std::vector<std::pair<double, int64_t>> order;
  for (const auto& [stride, count] : iterations) order.emplace_back(-count, stride);
  std::sort(order.begin(), order.end());
  std::vector<int64_t> places = {1};
  for (const auto& [count, stride] : order) {
    const auto fits = [stride = stride](int64_t place) {
      return stride % place == 0 || place % stride == 0;
    };
    if (stride != 1 && std::all_of(places.begin(), places.end(), fits)) places.push_back(stride);
  }
  std::sort(places.begin(), places.end());
  return places;
}

// Unrolls the loops whose strides are not places.
void Unroll(const Piece& piece, size_t loop, const std::vector<int64_t>& places,
            std::vector<Piece>* out, PieceBudget* budget) {
  const auto is_place = [&](const Piece::Loop& l) {
    return std::binary_search(places.begin(), places.end(), l.stride);
  };
  while (loop < piece.loops.size() && is_place(piece.loops[loop])) ++loop;
  if (loop == piece.loops.size()) {
    if (--*budget > 0) out->push_back(piece);
    return;
  }
  Piece part = piece;
  part.loops.erase(part.loops.begin() + static_cast<std::ptrdiff_t>(loop));
  for (int64_t i = 0; i<piece.loops[loop].extent&& * budget> 0; ++i) {
    Unroll(part, loop, places, out, budget);
    part.base += piece.loops[loop].stride;
  }
}

// Boxes with one dimension per place. Dimension 0 belongs to the smallest place.
class Boxes {
 public:
  Boxes(const std::vector<Piece>& pieces, const std::vector<int64_t>& places)
      : dimensions_(places.size()), count_(pieces.size()), steps_left_(kMostSteps) {
    bounds_.reserve(count_ * dimensions_);
    for (const Piece& piece : pieces) {
      for (size_t d = 0; d < dimensions_; ++d) {
        int64_t digit = piece.base / places[d];
        if (d + 1 < dimensions_) digit %= places[d + 1] / places[d];
        bounds_.push_back({digit, digit + 1});
      }
      for (const Piece::Loop& loop : piece.loops) {
        const auto place = std::lower_bound(places.begin(), places.end(), loop.stride);
        bounds_[bounds_.size() - dimensions_ + static_cast<size_t>(place - places.begin())].end +=
            loop.extent - 1;
      }
    }
  }

  // Counts the cells in at least one box. Returns nothing if that would take too long.
  std::optional<int64_t> Count() {
    std::vector<uint32_t> all(count_);
    std::vector<Range> space(dimensions_, {std::numeric_limits<int64_t>::max(), 0});
    for (size_t b = 0; b < count_; ++b) {
      all[b] = static_cast<uint32_t>(b);
      for (size_t d = 0; d < dimensions_; ++d) {
        space[d].begin = std::min(space[d].begin, RangeOf(b, d).begin);
        space[d].end = std::max(space[d].end, RangeOf(b, d).end);
      }
    }
    const int64_t count = CountIn(space, all);
    return steps_left_ < 0 ? std::nullopt : std::optional(count);
  }

 private:
  struct Range {
    int64_t begin, end;
  };

  const Range& RangeOf(size_t box, size_t d) const { return bounds_[box * dimensions_ + d]; }

  int64_t CountIn(std::vector<Range>& space, const std::vector<uint32_t>& candidates) {
    std::vector<uint32_t> here;
    for (const uint32_t box : candidates) {
      bool meets = true, fills = true;
      for (size_t d = 0; d < dimensions_ && meets; ++d) {
        const Range& range = RangeOf(box, d);
        meets = range.begin < space[d].end && space[d].begin < range.end;
        fills = fills && range.begin <= space[d].begin && space[d].end <= range.end;
      }
      if (meets && fills) return Volume(space);
      if (meets) here.push_back(box);
    }
    if (here.empty() || (steps_left_ -= std::ssize(candidates)) < 0) return 0;
    if (here.size() == 1) {
      std::vector<Range> part = space;
      for (size_t d = 0; d < dimensions_; ++d) {
        const Range& range = RangeOf(here[0], d);
        part[d] = {std::max(part[d].begin, range.begin), std::min(part[d].end, range.end)};
      }
      return Volume(part);
    }
    const auto [d, middle] = MiddleOf(space, here);
    const Range whole = space[d];
    space[d].end = middle;
    int64_t count = CountIn(space, here);
    space[d] = {middle, whole.end};
    count += CountIn(space, here);
    space[d] = whole;
    return count;
  }

  // Returns the dimension in which most boxes begin or end within the space, and the median of
  // these borders.
  std::pair<size_t, int64_t> MiddleOf(const std::vector<Range>& space,
                                      const std::vector<uint32_t>& boxes) const {
    size_t dimension = 0;
    std::vector<int64_t> ends, most;
    for (size_t d = 0; d < dimensions_; ++d) {
      ends.clear();
      for (const uint32_t box : boxes) {
        const Range& range = RangeOf(box, d);
        if (range.begin > space[d].begin) ends.push_back(range.begin);
        if (range.end < space[d].end) ends.push_back(range.end);
      }
      if (ends.size() <= most.size()) continue;
      most.swap(ends);
      dimension = d;
    }
    const auto middle = most.begin() + std::ssize(most) / 2;
    std::nth_element(most.begin(), middle, most.end());
    return {dimension, *middle};
  }

  int64_t Volume(const std::vector<Range>& ranges) const {
    int64_t volume = 1;
    for (const Range& range : ranges) volume *= range.end - range.begin;
    return volume;
  }

  const size_t dimensions_, count_;
  std::vector<Range> bounds_;
  int64_t steps_left_;
};

std::optional<int64_t> CountTogether(std::span<const Extent> extents) {
  std::vector<Piece> pieces;
  pieces.reserve(extents.size());
  for (const Extent& extent : extents) {
    pieces.push_back(SourcePiece(*extent.piece, extents.front().first));
  }
  const std::vector<int64_t> places = PlacesOf(pieces);
  PieceBudget budget = kMostBoxes;
  std::vector<Piece> parts;
  for (const Piece& piece : pieces) Unroll(piece, 0, places, &parts, &budget);
  for (size_t p = 1; p < places.size(); ++p) {  // A later cut never undoes an earlier one.
    pieces.swap(parts);
    parts.clear();
    budget = kMostBoxes;
    for (const Piece& piece : pieces) AlignPiece(piece, places[p], &parts, &budget);
  }
  if (budget <= 0) return {};
  return Boxes(parts, places).Count();
}

}  // namespace

std::optional<int64_t> CountHeld(std::span<const Piece* const> pieces) {
  std::vector<Extent> extents;
  extents.reserve(pieces.size());
  for (const Piece* piece : pieces) extents.push_back(ExtentOf(*piece));
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.first != b.first ? a.first < b.first : a.last > b.last;
  });
  int64_t held = 0;
  for (size_t begin = 0, end; begin < extents.size(); begin = end) {
    // These pieces may have common elements. If the first is a run without gaps that reaches as far
    // as all others, the others add nothing.
    const Extent& first = extents[begin];
    int64_t last = first.last;
    for (end = begin + 1; end < extents.size() && extents[end].first <= last; ++end) {
      last = std::max(last, extents[end].last);
    }
    if (end == begin + 1 ||
        (last == first.last && first.piece->elements() == last - first.first + 1)) {
      held += first.piece->elements();
      continue;
    }
    const auto count = CountTogether(std::span(extents).subspan(begin, end - begin));
    if (!count) return {};
    held += *count;
  }
  return held;
}

}  // namespace shardinit
