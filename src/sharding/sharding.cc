#include "sharding/sharding.h"

#include <algorithm>

#include "base/checked_math.h"

namespace shardinit {

void Sharding::FindBoxesOn(int64_t rank, std::vector<Box>* boxes) const {
  boxes->clear();
  if (!IsOn(rank)) return;
  boxes->push_back(WholeOf(shape_));
  const auto set = [](size_t d, const Interval& interval, Box* box) {
    box->offset[d] = interval.start;
    box->shape[d] = interval.length;
  };
  for (size_t d = 0; d < partition_.dimensions.size(); ++d) {
    const DimensionPartition& by = partition_.dimensions[d];
    if (by.axes.empty()) continue;
    if (by.segments == 1 && by.nested.empty()) {
      const Interval interval = Chunk(shape_[d], PartsOf(by, mesh_), PartOf(d, rank));
      if (interval.length == 0) return boxes->clear();
      for (Box& box : *boxes) set(d, interval, &box);
      continue;
    }
    const std::vector<Interval> intervals = IntervalsOf(d, rank);
    std::vector<Box> more;
    for (const Box& box : *boxes) {
      for (const Interval& interval : intervals) set(d, interval, &more.emplace_back(box));
    }
    *boxes = std::move(more);
  }
}

int64_t Sharding::ElementsOn(int64_t rank) const {
  if (!IsOn(rank)) return 0;
  int64_t elements = 1;
  for (size_t d = 0; d < partition_.dimensions.size(); ++d) {
    const DimensionPartition& by = partition_.dimensions[d];
    if (!by.nested.empty()) {
      int64_t extent = 0;
      for (const Interval& interval : IntervalsOf(d, rank)) extent += interval.length;
      elements *= extent;
      continue;
    }
    const int64_t n = shape_[d], segment = CeilDiv(n, by.segments);
    const auto extent_of = [&](int64_t whole) {
      return Chunk(whole, PartsOf(by, mesh_), PartOf(d, rank)).length;
    };
    elements *= n == 0 ? 0 : n / segment * extent_of(segment) + extent_of(n % segment);
  }
  return elements;
}

int64_t Sharding::PartOf(size_t dimension, int64_t rank) const {
  int64_t part = 0;
  for (const int axis : partition_.dimensions[dimension].axes) {
    part = part * mesh_.shape[axis] + mesh_.IndexOf(rank, axis);
  }
  return part;
}

Sharding::Interval Sharding::Chunk(int64_t extent, int64_t parts, int64_t part) {
  const int64_t width = CeilDiv(extent, parts);
  // part * width stays below n + k. The caller has checked that both fit.
  const int64_t start = std::min(extent, part * width);
  return {start, std::min(extent - start, width)};
}

std::vector<Sharding::Interval> Sharding::TakePart(const std::vector<Interval>& intervals,
                                                   int64_t segments, int64_t parts, int64_t part) {
  int64_t n = 0;
  for (const Interval& interval : intervals) n += interval.length;
  const int64_t segment = CeilDiv(n, segments);
  std::vector<Interval> taken;
  size_t i = 0;
  int64_t before = 0;  // elements before intervals[i]
  for (int64_t start = 0; start < n; start += segment) {
    auto [from, length] = Chunk(std::min(segment, n - start), parts, part);
    from += start;
    while (length > 0) {
      for (; from >= before + intervals[i].length; ++i) before += intervals[i].length;
      const int64_t skipped = from - before;
      const int64_t some = std::min(length, intervals[i].length - skipped);
      taken.push_back({intervals[i].start + skipped, some});
      from += some;
      length -= some;
    }
  }
  return taken;
}

std::vector<Sharding::Interval> Sharding::IntervalsOf(size_t dimension, int64_t rank) const {
  const DimensionPartition& by = partition_.dimensions[dimension];
  std::vector<Interval> left = {{0, shape_[dimension]}};
  if (by.nested.empty()) {
    return TakePart(left, by.segments, PartsOf(by, mesh_), PartOf(dimension, rank));
  }
  for (size_t a = 0; a < by.axes.size();) {
    const int64_t segments = by.nested[a];
    int64_t parts = 1, part = 0;
    do {
      parts *= mesh_.shape[by.axes[a]];
      part = part * mesh_.shape[by.axes[a]] + mesh_.IndexOf(rank, by.axes[a]);
    } while (++a < by.axes.size() && by.nested[a] == 0);
    left = TakePart(left, segments, parts, part);
  }
  // Joins adjacent intervals.
  std::vector<Interval> joined;
  for (const Interval& interval : left) {
    if (!joined.empty() && joined.back().start + joined.back().length == interval.start) {
      joined.back().length += interval.length;
    } else {
      joined.push_back(interval);
    }
  }
  return joined;
}

bool Sharding::IsOn(int64_t rank) const {
  return std::ranges::all_of(partition_.pins, [&](const Pin& pin) {
    return std::binary_search(pin.indices.begin(), pin.indices.end(),
                              mesh_.IndexOf(rank, pin.axis));
  });
}

int64_t Sharding::LowestRank() const {
  int64_t lowest = 0;
  for (const Pin& pin : partition_.pins) lowest += pin.indices.front() * mesh_.StrideOf(pin.axis);
  return lowest;
}

int64_t Sharding::LargestRank() const {
  int64_t largest = LowestRank();
  for (size_t d = 0; d < partition_.dimensions.size(); ++d) {
    if (SegmentsOf(partition_.dimensions[d]) == 1 || partition_.dimensions[d].nested.empty())
      continue;
    int64_t most = -1, at = 0;
    for (const int64_t rank : RanksAlong(partition_.dimensions[d].axes, mesh_)) {
      int64_t extent = 0;
      for (const Interval& interval : IntervalsOf(d, rank)) extent += interval.length;
      if (extent > most) at = rank;
      most = std::max(most, extent);
    }
    largest += at;
  }
  return largest;
}

int64_t Sharding::FirstHolder(int64_t rank) const {
  int64_t first = LowestRank();
  for (const DimensionPartition& by : partition_.dimensions) {
    for (const int axis : by.axes) first += mesh_.IndexOf(rank, axis) * mesh_.StrideOf(axis);
  }
  return first;
}

int64_t Sharding::holders() const {
  int64_t holders = mesh_.world_size();
  for (const DimensionPartition& by : partition_.dimensions) holders /= PartsOf(by, mesh_);
  for (const Pin& pin : partition_.pins) {
    holders = holders / mesh_.shape[pin.axis] * std::ssize(pin.indices);
  }
  return holders;
}

int64_t Sharding::CountBoxes() const {
  int64_t count = 1;
  for (size_t d = 0; d < partition_.dimensions.size(); ++d) {
    const DimensionPartition& by = partition_.dimensions[d];
    if (!by.nested.empty()) {
      int64_t along = 0;
      for (const int64_t rank : RanksAlong(by.axes, mesh_))
        along += std::ssize(IntervalsOf(d, rank));
      count *= along;
      continue;
    }
    const int64_t n = shape_[d], parts = PartsOf(by, mesh_);
    const int64_t segment = CeilDiv(n, by.segments);
    const auto parts_of = [&](int64_t extent) {
      return extent == 0 ? 0 : CeilDiv(extent, CeilDiv(extent, parts));
    };
    count *= n / segment * parts_of(segment) + parts_of(n % segment);
  }
  return count;
}

bool Sharding::operator==(const Sharding& other) const {
  return mesh_.world_size() == other.mesh_.world_size() && StepsOf() == other.StepsOf() &&
         PlacesOf() == other.PlacesOf();
}

std::vector<Sharding::Steps> Sharding::StepsOf() const {
  std::vector<Steps> all;
  for (const DimensionPartition& by : partition_.dimensions) {
    Steps& steps = all.emplace_back();
    int64_t segments = by.segments;  // segments of the next step
    for (size_t a = 0; a < by.axes.size(); ++a) {
      if (!by.nested.empty() && by.nested[a] > 0) segments = by.nested[a];
      const Step step{segments, mesh_.StrideOf(by.axes[a]), mesh_.shape[by.axes[a]]};
      if (step.parts == 1) continue;
      segments = 0;
      // Two consecutive axes act as one.
      if (step.segments == 0 && steps.back().stride == step.stride * step.parts) {
        steps.back().stride = step.stride;
        steps.back().parts *= step.parts;
      } else {
        steps.push_back(step);
      }
    }
  }
  return all;
}

std::vector<Sharding::Place> Sharding::PlacesOf() const {
  std::vector<Place> places;
  for (const Pin& pin : partition_.pins) {
    places.push_back({mesh_.StrideOf(pin.axis), mesh_.shape[pin.axis], pin.indices});
  }
  return places;
}

std::vector<int> Sharding::ShardingAxes() const {
  std::vector<int> sharding;
  for (const DimensionPartition& by : partition_.dimensions) {
    sharding.insert(sharding.end(), by.axes.begin(), by.axes.end());
  }
  std::ranges::sort(sharding);
  return sharding;
}

PartitionSpec Simplified(PartitionSpec partition, const Shape& shape, const Mesh& mesh) {
  for (size_t d = 0; d < partition.dimensions.size(); ++d) {
    DimensionPartition& by = partition.dimensions[d];
    if (by.nested.empty()) continue;
    // Joins each step with the one before it, later steps first. Repeats, because joining an
    // earlier step may allow a later one to be joined.
    for (bool is_new = true; is_new;) {
      is_new = false;
      for (size_t a = by.axes.size(); a-- > 1;) {
        if (by.nested[a] == 0) continue;
        DimensionPartition joined = by;
        joined.nested[a] = 0;
        // All axes before it may have one rank.
        const auto before = by.axes.begin() + static_cast<ptrdiff_t>(a);
        if (PartsOf(std::vector<int>(by.axes.begin(), before), mesh) == 1) {
          std::ranges::fill(joined.nested, 0);
          joined.nested[0] = by.nested[a];
        }
        if (!ShardAlike(shape[d], by, joined, mesh)) continue;
        by = std::move(joined);
        is_new = true;
      }
    }
    if (std::all_of(by.nested.begin() + 1, by.nested.end(), [](int64_t n) { return n == 0; })) {
      by.segments = PartsOf(by, mesh) == 1 ? 1 : std::min(by.nested[0], shape[d]);
      by.nested.clear();
    }
  }
  return partition;
}

bool ShardAlike(int64_t extent, const DimensionPartition& a, const DimensionPartition& b,
                const Mesh& mesh) {
  // If no axis has segments and all parts are equal, only the order of the axes counts.
  if (a.axes == b.axes && SegmentsOf(a) == 1 && SegmentsOf(b) == 1 &&
      extent % PartsOf(a, mesh) == 0) {
    return true;
  }
  const Shape shape = {extent};
  const PartitionSpec of_a = {a}, of_b = {b};
  const Sharding by_a(mesh, Replicas::kFull, shape, of_a);
  const Sharding by_b(mesh, Replicas::kFull, shape, of_b);
  const std::vector<int64_t> ranks = RanksAlong(a.axes, mesh);
  return std::ranges::all_of(
      ranks, [&](int64_t rank) { return by_a.BoxesOn(rank) == by_b.BoxesOn(rank); });
}

}  // namespace shardinit
