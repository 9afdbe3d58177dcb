#include "sharding/partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace shardinit {

std::vector<int64_t> PartitionSpec::segments() const {
  std::vector<int64_t> all;
  for (const DimensionPartition& by : dimensions) all.push_back(by.segments);
  return std::ranges::all_of(all, [](int64_t n) { return n == 1; }) ? std::vector<int64_t>() : all;
}

bool PartitionSpec::IsNested() const {
  return std::ranges::any_of(dimensions,
                             [](const DimensionPartition& by) { return !by.nested.empty(); });
}

bool PartitionSpec::IsExtended() const {
  return !pins.empty() || !segments().empty() || IsNested();
}

std::string InText(const PartitionSpec& spec, const Mesh& mesh) {
  std::string text;
  for (const DimensionPartition& by : spec.dimensions) {
    std::string entry;
    int64_t segments = by.segments;
    const auto end_step = [&] {
      if (segments != 1) entry += fmt::format(" in {} segments", segments);
    };
    for (size_t a = 0; a < by.axes.size(); ++a) {
      const bool is_step = !by.nested.empty() && by.nested[a] > 0;
      if (is_step && a > 0) end_step();
      if (is_step) segments = by.nested[a];
      if (a > 0) entry += is_step ? " then " : "+";
      entry += mesh.axes[by.axes[a]];
    }
    end_step();
    text += (text.empty() ? "" : ", ") + (entry.empty() ? "-" : entry);
  }
  text = "[" + text + "]";
  for (const Pin& pin : spec.pins) {
    text += fmt::format(" on {} {}", mesh.axes[pin.axis], fmt::join(pin.indices, ", "));
  }
  return text;
}

int64_t PartsOf(const DimensionPartition& by, const Mesh& mesh) {
  int64_t parts = 1;
  for (const int axis : by.axes) parts *= mesh.shape[axis];
  return parts;
}

int64_t DivisorOf(const DimensionPartition& by, const Mesh& mesh) {
  if (by.nested.empty()) return PartsOf(by, mesh) * by.segments;
  // Each axis shards the rest: the extent divided by all parts before it.
  int64_t divisor = 1, parts = 1;
  for (size_t a = 0; a < by.axes.size(); ++a) {
    parts *= mesh.shape[by.axes[a]];
    divisor = std::lcm(divisor, parts);
    int64_t step = parts * std::max<int64_t>(1, by.nested[a]);
    for (size_t b = a + 1; b < by.axes.size() && by.nested[b] == 0; ++b) {
      step *= mesh.shape[by.axes[b]];
    }
    divisor = std::lcm(divisor, step);
  }
  return divisor;
}

int64_t SegmentsOf(const DimensionPartition& by) {
  int64_t segments = by.segments;
  for (const int64_t of_axis : by.nested) segments *= std::max<int64_t>(1, of_axis);
  return segments;
}

}  // namespace shardinit
