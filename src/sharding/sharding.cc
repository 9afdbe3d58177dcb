#include "sharding/sharding.h"

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
  for (size_t d = 0; d < partition_.cuts.size(); ++d) {
    const DimensionCut& cut = partition_.cuts[d];
    if (cut.axes.empty()) continue;
    const int64_t part = PartOf(d, rank);
    if (cut.segments == 1) {
      const Interval interval = Chunk(shape_[d], PartsOf(cut, mesh_), part);
      if (interval.length == 0) return boxes->clear();
      for (Box& box : *boxes) set(d, interval, &box);
      continue;
    }
    std::vector<Box> more;
    for (const Box& box : *boxes) {
      for (const Interval& interval : IntervalsOf(d, part))
        set(d, interval, &more.emplace_back(box));
    }
    *boxes = std::move(more);
  }
}

int64_t Sharding::ElementsOn(int64_t rank) const {
  if (!IsOn(rank)) return 0;
  int64_t elements = 1;
  for (size_t d = 0; d < partition_.cuts.size(); ++d) {
    const DimensionCut& cut = partition_.cuts[d];
    const int64_t n = shape_[d], segment = CeilDiv(n, cut.segments);
    const auto extent_of = [&](int64_t whole) {
      return Chunk(whole, PartsOf(cut, mesh_), PartOf(d, rank)).length;
    };
    elements *= n == 0 ? 0 : n / segment * extent_of(segment) + extent_of(n % segment);
  }
  return elements;
}

int64_t Sharding::PartOf(size_t dimension, int64_t rank) const {
  int64_t part = 0;
  for (const int axis : partition_.cuts[dimension].axes) {
    part = part * mesh_.shape[axis] + mesh_.IndexOf(rank, axis);
  }
  return part;
}

Sharding::Interval Sharding::Chunk(int64_t extent, int64_t parts, int64_t part) {
  const int64_t width = CeilDiv(extent, parts);
  // part * width stays below n + k: both were checked to fit.
  const int64_t start = std::min(extent, part * width);
  return {start, std::min(extent - start, width)};
}

std::vector<Sharding::Interval> Sharding::IntervalsOf(size_t dimension, int64_t part) const {
  const DimensionCut& cut = partition_.cuts[dimension];
  const int64_t n = shape_[dimension], parts = PartsOf(cut, mesh_);
  const int64_t segment = CeilDiv(n, cut.segments);
  std::vector<Interval> intervals;
  for (int64_t start = 0; start < n; start += segment) {
    Interval interval = Chunk(std::min(segment, n - start), parts, part);
    interval.start += start;
    if (interval.length > 0) intervals.push_back(interval);
  }
  return intervals;
}

bool Sharding::IsOn(int64_t rank) const {
  return std::all_of(partition_.pins.begin(), partition_.pins.end(), [&](const Pin& pin) {
    return std::binary_search(pin.indices.begin(), pin.indices.end(),
                              mesh_.IndexOf(rank, pin.axis));
  });
}

int64_t Sharding::Lowest() const {
  int64_t lowest = 0;
  for (const Pin& pin : partition_.pins) lowest += pin.indices.front() * mesh_.StrideOf(pin.axis);
  return lowest;
}

int64_t Sharding::FirstHolder(int64_t rank) const {
  int64_t first = Lowest();
  for (const DimensionCut& cut : partition_.cuts) {
    for (const int axis : cut.axes) first += mesh_.IndexOf(rank, axis) * mesh_.StrideOf(axis);
  }
  return first;
}

int64_t Sharding::holders() const {
  int64_t holders = mesh_.world_size();
  for (const DimensionCut& cut : partition_.cuts) holders /= PartsOf(cut, mesh_);
  for (const Pin& pin : partition_.pins) {
    holders = holders / mesh_.shape[pin.axis] * std::ssize(pin.indices);
  }
  return holders;
}

int64_t Sharding::CountBoxes() const {
  int64_t count = 1;
  for (size_t d = 0; d < partition_.cuts.size(); ++d) {
    const int64_t n = shape_[d], parts = PartsOf(partition_.cuts[d], mesh_);
    const int64_t segment = CeilDiv(n, partition_.cuts[d].segments);
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
  for (const DimensionCut& cut : partition_.cuts) {
    all.push_back({cut.segments, {}});
    std::vector<Step>& steps = all.back().steps;
    for (const int axis : cut.axes) {
      const Step step{mesh_.StrideOf(axis), mesh_.shape[axis]};
      if (step.parts == 1) continue;
      // Two axes that follow one another are as one.
      if (!steps.empty() && steps.back().stride == step.stride * step.parts) {
        steps.back() = {step.stride, steps.back().parts * step.parts};
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

std::vector<int> Sharding::CuttingAxes() const {
  std::vector<int> cutting;
  for (const DimensionCut& cut : partition_.cuts) {
    cutting.insert(cutting.end(), cut.axes.begin(), cut.axes.end());
  }
  std::sort(cutting.begin(), cutting.end());
  return cutting;
}

}  // namespace shardinit
