#include "sharding/partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardinit {

std::vector<int64_t> PartitionSpec::segments() const {
  std::vector<int64_t> all;
  for (const DimensionCut& cut : cuts) all.push_back(cut.segments);
  return std::all_of(all.begin(), all.end(), [](int64_t n) { return n == 1; })
             ? std::vector<int64_t>()
             : all;
}

bool PartitionSpec::IsExtended() const {
  return !pins.empty() || std::any_of(cuts.begin(), cuts.end(),
                                      [](const DimensionCut& cut) { return cut.segments != 1; });
}

std::string InText(const PartitionSpec& spec, const Mesh& mesh) {
  std::string text;
  for (const DimensionCut& cut : spec.cuts) {
    std::string entry;
    for (const int axis : cut.axes) entry += (entry.empty() ? "" : "+") + mesh.axes[axis];
    if (cut.segments != 1) entry += fmt::format(" in {} segments", cut.segments);
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

}  // namespace shardinit
