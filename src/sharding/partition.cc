#include "sharding/partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace shardinit {

std::vector<int64_t> PartitionSpec::segments() const {
  std::vector<int64_t> all;
  for (const DimensionCut& cut : cuts) all.push_back(cut.segments);
  return std::ranges::all_of(all, [](int64_t n) { return n == 1; }) ? std::vector<int64_t>() : all;
}

bool PartitionSpec::IsNested() const {
  return std::ranges::any_of(cuts, [](const DimensionCut& cut) { return !cut.nested.empty(); });
}

bool PartitionSpec::IsExtended() const {
  return !pins.empty() || !segments().empty() || IsNested();
}

std::string InText(const PartitionSpec& spec, const Mesh& mesh) {
  std::string text;
  for (const DimensionCut& cut : spec.cuts) {
    std::string entry;
    int64_t segments = cut.segments;
    const auto end_step = [&] {
      if (segments != 1) entry += fmt::format(" in {} segments", segments);
    };
    for (size_t a = 0; a < cut.axes.size(); ++a) {
      const bool is_step = !cut.nested.empty() && cut.nested[a] > 0;
      if (is_step && a > 0) end_step();
      if (is_step) segments = cut.nested[a];
      if (a > 0) entry += is_step ? " then " : "+";
      entry += mesh.axes[cut.axes[a]];
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

int64_t PartsOf(const DimensionCut& cut, const Mesh& mesh) {
  int64_t parts = 1;
  for (const int axis : cut.axes) parts *= mesh.shape[axis];
  return parts;
}

int64_t DivisorOf(const DimensionCut& cut, const Mesh& mesh) {
  if (cut.nested.empty()) return PartsOf(cut, mesh) * cut.segments;
  // Each axis shards what is left: the extent divided by all parts before it.
  int64_t divisor = 1, parts = 1;
  for (size_t a = 0; a < cut.axes.size(); ++a) {
    parts *= mesh.shape[cut.axes[a]];
    divisor = std::lcm(divisor, parts);
    int64_t step = parts * std::max<int64_t>(1, cut.nested[a]);
    for (size_t b = a + 1; b < cut.axes.size() && cut.nested[b] == 0; ++b) {
      step *= mesh.shape[cut.axes[b]];
    }
    divisor = std::lcm(divisor, step);
  }
  return divisor;
}

int64_t SegmentsOf(const DimensionCut& cut) {
  int64_t segments = cut.segments;
  for (const int64_t of_axis : cut.nested) segments *= std::max<int64_t>(1, of_axis);
  return segments;
}

}  // namespace shardinit
