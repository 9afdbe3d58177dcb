#include "tensor/box.h"

#include <algorithm>
#include <utility>

namespace shardinit {

Runs::Runs(const Shape& global, const Box& box) {
  int64_t stride = 1;
  bool merging = true;  // The box contains every dimension after this one entirely.
  for (size_t d = global.size(); d-- > 0;) {
    if (merging) {
      length_ *= box.shape[d];
      base_ += box.offset[d] * stride;
      merging = box.shape[d] == global[d];
    } else {
      outer_.push_back({box.shape[d], stride});
      base_ += box.offset[d] * stride;
      count_ *= box.shape[d];
    }
    stride *= global[d];
  }
  std::reverse(outer_.begin(), outer_.end());
  if (!outer_.empty()) stride_ = outer_.back().stride;
}

Runs::Runs(int64_t start, std::vector<Dimension> dimensions, int64_t length)
    : outer_(std::move(dimensions)), length_(length), base_(start) {
  for (const Dimension& dimension : outer_) count_ *= dimension.extent;
  if (!outer_.empty()) stride_ = outer_.back().stride;
}

int64_t Runs::Start(int64_t run) const {
  int64_t start = base_;
  for (size_t d = outer_.size(); d-- > 0;) {
    const Dimension& dimension = outer_[d];
    start += run % dimension.extent * dimension.stride;
    run /= dimension.extent;
  }
  return start;
}

int64_t Runs::EndOfStride(int64_t run) const {
  if (outer_.empty()) return 1;
  const int64_t extent = outer_.back().extent;
  return std::min(count_, (run / extent + 1) * extent);
}

}  // namespace shardinit
