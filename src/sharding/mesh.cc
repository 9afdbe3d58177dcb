#include "sharding/mesh.h"

#include <algorithm>

namespace shardinit {

int64_t Mesh::world_size() const {
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  return size;
}

std::vector<int64_t> Mesh::CoordinateOf(int64_t rank) const {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t a = shape.size(); a-- > 0;) {
    coordinate[a] = rank % shape[a];
    rank /= shape[a];
  }
  return coordinate;
}

int Mesh::Find(const std::string& axis) const {
  const auto it = std::find(axes.begin(), axes.end(), axis);
  return it == axes.end() ? -1 : static_cast<int>(it - axes.begin());
}

}  // namespace shardinit
