#include "sharding/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tensor/box.h"

namespace shardinit {

int64_t Mesh::world_size() const { return ElementCount(shape); }

int64_t Mesh::StrideOf(int axis) const {
  int64_t stride = 1;
  for (size_t a = shape.size(); a-- > static_cast<size_t>(axis) + 1;) stride *= shape[a];
  return stride;
}

std::vector<int64_t> Mesh::CoordinateOf(int64_t rank) const {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t a = 0; a < shape.size(); ++a) coordinate[a] = IndexOf(rank, static_cast<int>(a));
  return coordinate;
}

int Mesh::Find(const std::string& axis) const {
  const auto it = std::ranges::find(axes, axis);
  return it == axes.end() ? -1 : static_cast<int>(it - axes.begin());
}

std::vector<int64_t> RanksAlong(const std::vector<int>& axes, const Mesh& mesh) {
  std::vector<int64_t> ranks = {0};
  for (const int axis : axes) {
    std::vector<int64_t> next;
    for (const int64_t rank : ranks) {
      for (int64_t i = 0; i < mesh.shape[axis]; ++i) next.push_back(rank + i * mesh.StrideOf(axis));
    }
    ranks = std::move(next);
  }
  return ranks;
}

std::string InText(const Mesh& mesh) {
  std::string text;
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    text += fmt::format("{}{}={}", a == 0 ? "" : ", ", mesh.axes[a], mesh.shape[a]);
  }
  return text;
}

}  // namespace shardinit
