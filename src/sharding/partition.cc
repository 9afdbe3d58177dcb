#include "sharding/partition.h"

#include <algorithm>

namespace shardinit {
namespace {

int64_t CeilDiv(int64_t n, int64_t k) { return n / k + (n % k != 0); }

}  // namespace

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

Box BoxAt(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh,
          const std::vector<int64_t>& coordinate) {
  Box box = WholeOf(shape);
  for (size_t d = 0; d < spec.size(); ++d) {
    if (spec[d].empty()) continue;
    int64_t part = 0;
    for (const int axis : spec[d]) part = part * mesh.shape[axis] + coordinate[axis];
    const int64_t width = CeilDiv(shape[d], PartsOf(spec[d], mesh));
    // part * width stays below n + k: both were checked to fit.
    box.offset[d] = std::min(shape[d], part * width);
    box.shape[d] = std::min(shape[d], (part + 1) * width) - box.offset[d];
  }
  return box;
}

bool IsEmpty(const Box& box) {
  return std::find(box.shape.begin(), box.shape.end(), 0) != box.shape.end();
}

bool IsFirstReplica(const PartitionSpec& spec, const std::vector<int64_t>& coordinate) {
  for (size_t axis = 0; axis < coordinate.size(); ++axis) {
    if (coordinate[axis] == 0) continue;
    const bool used = std::any_of(spec.begin(), spec.end(), [&](const std::vector<int>& axes) {
      return std::find(axes.begin(), axes.end(), static_cast<int>(axis)) != axes.end();
    });
    if (!used) return false;
  }
  return true;
}

int64_t CountBoxes(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh) {
  int64_t count = 1;
  for (size_t d = 0; d < spec.size(); ++d) {
    const int64_t width = CeilDiv(shape[d], PartsOf(spec[d], mesh));
    count *= CeilDiv(shape[d], width);
  }
  return count;
}

}  // namespace shardinit
