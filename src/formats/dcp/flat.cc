#include "formats/dcp/flat.h"

#include <algorithm>

#include "base/text.h"
#include "formats/dcp/saved.h"
#include "report/text.h"

namespace shardinit::dcp {
namespace {

// Adds the pieces of `count` elements of a tensor, from `first` on, that a file has from `offset`
// on. Elements that are contiguous in row-major order are at most 2 * rank - 1 boxes.
void AddRun(const std::string& file, int64_t offset, int64_t element_bytes, int64_t first,
            int64_t count, TensorInFolder* tensor) {
  const Shape& shape = tensor->shape;
  while (count > 0) {
    Box box = WholeOf(shape);
    int64_t place = ElementCount(shape), rest = first;
    for (size_t d = 0; d < shape.size(); ++d) {
      place /= shape[d];
      box.offset[d] = rest / place;
      box.shape[d] = 1;
      rest %= place;
      if (rest > 0 || place > count) continue;
      box.shape[d] = std::min(shape[d] - box.offset[d], count / place);
      break;
    }
    const int64_t taken = ElementCount(box.shape);
    tensor->pieces.push_back({std::move(box), file, offset});
    first += taken;
    count -= taken;
    offset += taken * element_bytes;
  }
}

}  // namespace

void FlatVector::Append(const TensorInFolder& stored, const std::string& path) {
  const DTypeInfo* const dtype = FindDType(&ForeignNames::torch, stored.dtype);
  if (dtype == nullptr || (!dtype_.empty() && stored.dtype != dtype_)) {
    Refuse(path, "a part of a flat vector has the type {}{}", Quote(stored.dtype),
           dtype_.empty() ? "" : fmt::format(", but another part has {}", Quote(dtype_)));
  }
  dtype_ = stored.dtype;
  element_bytes_ = dtype->bytes;
  if (stored.shape.size() != 1) {
    Refuse(path, "a part of a flat vector has the shape {}", InShape(stored.shape));
  }
  if (stored.pieces.empty()) return;
  if (!stored.pieces[0].loops.empty()) Refuse(path, "a part of a flat vector is not contiguous");
  runs_.push_back(stored.pieces[0]);
  ends_.push_back(size() + stored.shape[0]);
}

void FlatVector::Place(int64_t at, int64_t count, int64_t first, TensorInFolder* tensor) const {
  auto i = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin());
  for (; count > 0; ++i) {
    const int64_t before = at - (ends_[i] - runs_[i].box.shape[0]);
    const int64_t taken = std::min(count, ends_[i] - at);
    AddRun(runs_[i].file, runs_[i].offset + before * element_bytes_, element_bytes_, first, taken,
           tensor);
    at += taken;
    first += taken;
    count -= taken;
  }
}

}  // namespace shardinit::dcp
