#include "sharding/partition.h"

namespace shardinit {

std::string InText(const PartitionSpec& spec, const Mesh& mesh) {
  std::string text;
  for (const auto& axes : spec) {
    std::string entry;
    for (const int axis : axes) entry += (entry.empty() ? "" : "+") + mesh.axes[axis];
    text += (text.empty() ? "" : ", ") + (entry.empty() ? "-" : entry);
  }
  return "[" + text + "]";
}

int64_t PartsOf(const std::vector<int>& axes, const Mesh& mesh) {
  int64_t parts = 1;
  for (const int axis : axes) parts *= mesh.shape[axis];
  return parts;
}

}  // namespace shardinit
