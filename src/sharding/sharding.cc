#include "sharding/sharding.h"

#include "base/checked_math.h"

namespace shardinit {

bool IsEmpty(const Box& box) {
  return std::find(box.shape.begin(), box.shape.end(), 0) != box.shape.end();
}

Box Sharding::BoxOn(int64_t rank) const {
  Box box = WholeOf(shape_);
  for (size_t d = 0; d < partition_.size(); ++d) {
    if (partition_[d].empty()) continue;
    int64_t part = 0;
    for (const int axis : partition_[d]) {
      part = part * mesh_.shape[axis] + mesh_.IndexOf(rank, axis);
    }
    const int64_t width = CeilDiv(shape_[d], PartsOf(partition_[d], mesh_));
    // part * width stays below n + k: both were checked to fit.
    box.offset[d] = std::min(shape_[d], part * width);
    box.shape[d] = std::min(shape_[d], (part + 1) * width) - box.offset[d];
  }
  return box;
}

int64_t Sharding::FirstHolder(int64_t rank) const {
  int64_t first = 0;
  for (const auto& axes : partition_) {
    for (const int axis : axes) first += mesh_.IndexOf(rank, axis) * mesh_.StrideOf(axis);
  }
  return first;
}

int64_t Sharding::holders() const {
  int64_t holders = mesh_.world_size();
  for (const auto& axes : partition_) holders /= PartsOf(axes, mesh_);
  return holders;
}

int64_t Sharding::CountBoxes() const {
  int64_t count = 1;
  for (size_t d = 0; d < partition_.size(); ++d) {
    const int64_t width = CeilDiv(shape_[d], PartsOf(partition_[d], mesh_));
    count *= CeilDiv(shape_[d], width);
  }
  return count;
}

bool Sharding::operator==(const Sharding& other) const {
  return mesh_.world_size() == other.mesh_.world_size() && Cuts() == other.Cuts();
}

std::vector<std::vector<Sharding::Cut>> Sharding::Cuts() const {
  std::vector<std::vector<Cut>> cuts;
  for (const auto& axes : partition_) {
    auto& dimension = cuts.emplace_back();
    for (const int axis : axes) {
      const Cut cut{mesh_.StrideOf(axis), mesh_.shape[axis]};
      if (cut.parts == 1) continue;
      // Two axes that follow one another are as one.
      if (!dimension.empty() && dimension.back().stride == cut.stride * cut.parts) {
        dimension.back() = {cut.stride, dimension.back().parts * cut.parts};
      } else {
        dimension.push_back(cut);
      }
    }
  }
  return cuts;
}

std::vector<int> Sharding::CuttingAxes() const {
  std::vector<int> cutting;
  for (const auto& axes : partition_) cutting.insert(cutting.end(), axes.begin(), axes.end());
  std::sort(cutting.begin(), cutting.end());
  return cutting;
}

}  // namespace shardinit
